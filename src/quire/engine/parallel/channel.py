"""Frames over a pair of connected sockets between rank 0 and one other rank.

A message is its number of frames and their lengths, then the frames. Never pickle. The end of the
stream means that the peer has ended.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from quire.core.wire import Frame

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
MAX_FRAMES = 1 << 16


class PeerGone(Exception):
    """The peer has closed its end."""


class RankChannel:
    """One end. Blocks; one reader and one writer."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, frames: Sequence[Frame]) -> None:
        """Send one message. Raises ``PeerGone`` when the peer no longer reads."""
        lengths = [len(frame) for frame in frames]
        header = _COUNT.pack(len(frames)) + b"".join(_LENGTH.pack(length) for length in lengths)
        try:
            self._socket.sendall(b"".join((header, *frames)))
        except OSError as exc:
            raise PeerGone from exc

    def receive(self) -> list[Frame]:
        """The next message's frames. Raises ``PeerGone`` at the end of the stream."""
        (count,) = _COUNT.unpack(self._exactly(_COUNT.size))
        if count > MAX_FRAMES:
            raise PeerGone
        header = self._exactly(_LENGTH.size * count)
        lengths = [length for (length,) in _LENGTH.iter_unpack(header)]
        whole = memoryview(self._exactly(sum(lengths)))
        frames: list[Frame] = []
        start = 0
        for length in lengths:
            frames.append(whole[start : start + length])
            start += length
        return frames

    def close(self) -> None:
        """Close it; a thread that waits for the peer gets ``PeerGone``."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            try:
                count = self._socket.recv_into(view)
            except OSError as exc:
                raise PeerGone from exc
            if not count:
                raise PeerGone
            view = view[count:]
        return buffer
