"""The messages between grammar processes and their users.

Owns the messages and their frames on a stream socket: a length, then msgpack. File descriptors may
accompany a frame.
"""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from quire.core.decoding import GrammarSpec

_LENGTH = struct.Struct("<I")


class Compile(msgspec.Struct, frozen=True, tag="compile"):
    """Compile this grammar. Not answered; the answer to the next request reports errors."""

    grammar: GrammarSpec


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Fork the process; the child answers on the socket that accompanies this. Not answered
    here."""


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Begin a sequence whose output so far is ``tokens``. Answered like ``Advance``."""

    sequence: int
    tokens: list[int]


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """Advance each sequence by its token. Answers: ``GrammarAdvanced``, then ``Masks``."""

    sequences: list[int]
    tokens: list[int]


class Close(msgspec.Struct, frozen=True, tag="close"):
    """End the sequence. Not answered."""

    sequence: int


class Try(msgspec.Struct, frozen=True, tag="try"):
    """Take up to ``num_tokens`` steps through the grammar. Answered by ``GrammarAdvanced``."""

    num_tokens: int


class GrammarFailed(msgspec.Struct, frozen=True):
    """The grammar is invalid, or cannot be followed any further."""

    message: str


class GrammarAdvanced(msgspec.Struct, frozen=True, tag="advanced"):
    """For each requested sequence: whether nothing can follow."""

    finished: list[bool | GrammarFailed]


class Masks(msgspec.Struct, frozen=True, tag="masks"):
    """For each sequence: the tokens that may come next as a bit mask, token 0 in the lowest bit."""

    allowed: list[bytes | GrammarFailed]


Request = Compile | Fork | Open | Advance | Close | Try
Answer = GrammarAdvanced | Masks

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Link:
    """Owns one end of a stream socket; closes it when garbage collected."""

    __slots__ = ("__weakref__", "_close", "_end")

    def __init__(self, end: socket.socket) -> None:
        self._end = end.detach()
        self._close = weakref.finalize(self, os.close, self._end)

    def send(self, message: Request | Answer, descriptors: Sequence[int] = ()) -> None:
        """Send one message. Raises ``OSError``: the other end is closed."""
        payload = _ENCODER.encode(message)
        frame = memoryview(_LENGTH.pack(len(payload)) + payload)
        if descriptors:
            frame = frame[self._send_descriptors(frame, descriptors) :]
        while frame:
            frame = frame[os.write(self._end, frame) :]

    def request(self) -> tuple[Request, list[int]] | None:
        """The next request and the descriptors that accompany it; None at the end of the stream."""
        with self._borrowed() as end:
            head, descriptors, _, _ = socket.recv_fds(end, _LENGTH.size, 1)
        try:
            return _REQUESTS.decode(self._payload(head)), list(descriptors)
        except EOFError:
            return None

    def answer(self) -> Answer:
        """Return the next answer. Raises ``EOFError``: the process at the other end has ended."""
        try:
            return _ANSWERS.decode(self._payload(b""))
        except OSError as exc:  # it has ended, or the link has been closed here
            raise EOFError from exc

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._close()
        self._end = -1  # the system may reuse the number

    @contextmanager
    def _borrowed(self) -> Iterator[socket.socket]:
        """A socket object for the duration of a call, because only such objects can pass
        descriptors."""
        end = socket.socket(fileno=self._end)
        try:
            yield end
        finally:
            end.detach()

    def _send_descriptors(self, frame: memoryview, descriptors: Sequence[int]) -> int:
        with self._borrowed() as end:
            return socket.send_fds(end, [frame], descriptors)

    def _payload(self, head: bytes) -> bytes:
        head += self._exactly(_LENGTH.size - len(head))
        return self._exactly(_LENGTH.unpack(head)[0])

    def _exactly(self, num_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < num_bytes:
            part = os.read(self._end, num_bytes - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)
