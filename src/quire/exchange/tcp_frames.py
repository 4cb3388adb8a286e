"""Frames on a TCP connection: a msgpack header, and for a piece its raw bytes behind it.

Owns the socket of one connection. Everything that a peer says is bounded: headers by a constant,
bodies by the caller, who also sets the time.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec
import xxhash

from quire.core.errors import ErrorRecord, ProtocolMismatch
from quire.core.kv_transport import Piece
from quire.exchange.nixl import RemoteName
from quire.exchange.shared_window import WindowName

_PRELUDE = struct.Struct("<4sII")
"""Mark, bytes of the header, bytes of the body."""

_MARK = b"QKV2"
_MAX_HEADER_BYTES = 1 << 16


class Greeting(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The sender's first message. ``version``: ``PROTOCOL_VERSION``; ``layout``: see ``KVSource``;
    ``shared``: memory for the pieces, if the receiver is on the same machine; ``has_nixl``: the
    sender can write them to memory of the receiver."""

    version: int
    lease: int
    key: bytes
    content: str
    layout: str
    shared: WindowName | None = None
    has_nixl: bool = False


class ReceiverWelcome(msgspec.Struct, frozen=True, kw_only=True, tag="Welcome"):
    """The receiver takes pieces for the lease, raw ones if ``is_raw``. ``piece_bytes``: the
    largest. ``is_shared``: it has found the memory that the greeting names. ``remote``: memory to
    which the sender writes pieces instead."""

    piece_bytes: int
    is_raw: bool
    is_shared: bool = False
    remote: RemoteName | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A piece, whose bytes are the body."""

    piece: Piece
    checksum: int


class SharedPart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A piece whose bytes are in the memory that was agreed on from ``offset`` on, until it is
    written."""

    piece: Piece
    checksum: int
    offset: int
    num_bytes: int


class Written(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """So many bytes of this connection are verified and written."""

    num_bytes: int


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The receiver's last message."""

    error: ErrorRecord


ToReceiver = Greeting | Part | SharedPart
ToSender = ReceiverWelcome | Written | Refusal

Heard = TypeVar("Heard")

to_receiver: msgspec.msgpack.Decoder[ToReceiver] = msgspec.msgpack.Decoder(ToReceiver)
to_sender: msgspec.msgpack.Decoder[ToSender] = msgspec.msgpack.Decoder(ToSender)


class ConnectionEnded(Exception):
    """The peer has closed the connection, between two frames."""


class Frames(Generic[Heard]):
    """``decoder`` reads what the peer says. Owns ``connection``, which is not blocking."""

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[Heard]) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._decoder = decoder
        self._loop = asyncio.get_running_loop()

    async def say(self, message: msgspec.Struct, body: memoryview | None = None) -> None:
        header = msgspec.msgpack.encode(message)
        size = 0 if body is None else body.nbytes
        prelude = _PRELUDE.pack(_MARK, len(header), size)
        await self._loop.sock_sendall(self._connection, prelude + header)
        if body is not None:
            await self._loop.sock_sendall(self._connection, body)

    async def hear(self) -> tuple[Heard, int]:
        """The next message, and how many bytes of body follow it.

        Raises:
            ConnectionEnded: there is none.
            ProtocolMismatch: what came is no message.
            OSError: the connection is broken, possibly within a message.
        """
        prelude = bytearray(_PRELUDE.size)
        await self.fill(memoryview(prelude), may_end=True)
        mark, header_size, size = _PRELUDE.unpack(prelude)
        if mark != _MARK or header_size > _MAX_HEADER_BYTES:
            raise ProtocolMismatch(
                f"a frame begins with {bytes(prelude)!r}: the peer is no engine of this release"
            )
        header = bytearray(header_size)
        await self.fill(memoryview(header))
        try:
            return self._decoder.decode(header), size
        except (msgspec.DecodeError, ValueError) as exc:
            raise ProtocolMismatch(f"a message that cannot be read: {exc}") from exc

    async def fill(self, buffer: memoryview, *, may_end: bool = False) -> None:
        """Read until ``buffer`` is full."""
        done = 0
        while done < len(buffer):
            count = await self._loop.sock_recv_into(self._connection, buffer[done:])
            if count == 0:
                if may_end and done == 0:
                    raise ConnectionEnded
                raise ConnectionResetError(f"the peer left after {done} of {len(buffer)} bytes")
            done += count

    async def refuse(self, error: ErrorRecord, most_bytes: int) -> None:
        """Say the last message, then read up to ``most_bytes`` that are under way: a socket that is
        closed with unread bytes takes the message back."""
        await self.say(Refusal(error=error))
        self._connection.shutdown(socket.SHUT_WR)
        buffer = memoryview(bytearray(min(most_bytes, 1 << 16)))
        while most_bytes > 0:
            count = await self._loop.sock_recv_into(self._connection, buffer)
            if count == 0:
                return
            most_bytes -= count

    def close(self) -> None:
        self._connection.close()


def checksum(payload: Any) -> int:
    """XXH3: damage is found as surely as by CRC-32, at the speed of memory."""
    return xxhash.xxh3_64_intdigest(payload)
