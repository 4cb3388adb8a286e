"""One ZeroMQ PAIR socket on an asyncio loop: frames in, frames out, without futures.

Owns the socket, its endpoint and (for ipc) the directory of the endpoint. Must not know what the
frames mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import zmq

from quire.core.errors import ProtocolMismatch
from quire.core.scratch import ScratchDirectory
from quire.core.wire import Frame
from quire.node.transports.packing import pack, unpack

_MAX_IPC_PATH_BYTES = 100
"""A Unix socket's path has at most 107 bytes on Linux, 103 on macOS."""

_NOBLOCK, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain numbers: an operation on flags creates a new enum member, which costs more than the
call."""


class PairSocket:
    """``open`` binds a fresh endpoint, ipc where the platform has it, else tcp on loopback; the
    other side may ``connect`` to it.

    ``on_message`` gets the frames of each message, on the loop that opened it.
    """

    def __init__(self, on_message: Callable[[list[bytes]], None]) -> None:
        self._on_message = on_message
        self._directory: ScratchDirectory | None = None
        self._closed = True
        self._is_draining = False

    def open(self) -> str:
        """Bind and start to listen; return the endpoint to connect to."""
        self._create()
        endpoint = self._ipc_endpoint()
        if endpoint is None:
            port = self._socket.bind_to_random_port("tcp://127.0.0.1")
            endpoint = f"tcp://127.0.0.1:{port}"
        else:
            self._socket.bind(endpoint)
        self._loop.add_reader(self._socket.fileno(), self._drain)
        return endpoint

    def connect(self, endpoint: str, linger_ms: int = 0) -> None:
        """Connect to an endpoint that ``open`` has returned. ``linger_ms``: time for sending the
        last messages at the end."""
        self._create()
        self._socket.linger = linger_ms
        self._socket.connect(endpoint)
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._loop.call_soon(self._drain)

    def _create(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.linger = 0
        # ZeroMQ's default limit refuses messages beyond a number: a guest that computes for a
        # second would cost others their events. Mailboxes and queues have limits of their own.
        self._socket.set_hwm(0)
        self._closed = False

    def _ipc_endpoint(self) -> str | None:
        if not zmq.has("ipc"):
            return None
        directory = ScratchDirectory("socket")  # only this user connects
        path = directory.path / "s"
        if len(bytes(path)) > _MAX_IPC_PATH_BYTES:
            directory.close()
            return None
        self._directory = directory
        return f"ipc://{path}"

    def send(self, frames: Sequence[Frame]) -> None:
        """Send a message. It is dropped if the other side is gone: the code that watches that
        process reports the loss."""
        try:
            self._socket.send(pack(frames), _NOBLOCK)
        except zmq.Again:  # the queue is unlimited: the other side is gone
            return
        # The descriptor is edge-triggered, and sending may have taken the edge of an arrival. An
        # answer that is sent while messages are taken needs no check: all of them are taken.
        if not self._is_draining and self._has_message():
            self._loop.call_soon(self._drain)

    def _has_message(self) -> bool:
        return bool(cast(int, self._socket.getsockopt(_EVENTS)) & _POLLIN)

    def _drain(self) -> None:
        self._is_draining = True
        try:
            while not self._closed and self._has_message():
                self._on_message(_frames(self._socket.recv(_NOBLOCK)))
        except BaseException:
            self._loop.call_soon(self._drain)  # the remaining messages are not lost with this one
            raise
        finally:
            self._is_draining = False

    def close(self) -> None:
        """Close the socket. Idempotent; does nothing before ``open``."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()
        self.connected()

    def connected(self) -> None:
        """Remove the endpoint: the other side is connected and no further one is expected. No file
        is then left if this process is killed. Idempotent."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None


def _frames(packed: bytes) -> list[bytes]:
    """The frames of a message; none for an unreadable one, which every decoder then refuses."""
    try:
        return unpack(packed)
    except ProtocolMismatch:
        return []
