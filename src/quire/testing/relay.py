"""A TCP relay that simulates distance and failing links between processes of one machine.

A client that connects to the relay is connected to its target. Owns the delay and the rate of the
bytes between the two, and whether they pass at all. Must not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from typing import Literal, Self

from quire.core.errors import InvalidArgument

State = Literal["open", "held", "cut", "half_open"]
_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_NO_LINGER = struct.pack("ii", 1, 0)
_PIECE_BYTES = 16 << 10
_MAX_PIECES = 256
"""The largest number of pieces in one direction of a connection; then the sender waits."""


@dataclass(eq=False, slots=True)
class _Way:
    """The traffic in one direction. ``free_s``: when the link can take the next byte."""

    num_bytes: int = 0
    free_s: float = 0.0
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def count(self, num_bytes: int) -> None:
        async with self.progress:
            self.num_bytes += num_bytes
            self.progress.notify_all()

    async def passed(self, num_bytes: int) -> None:
        async with self.progress:
            await self.progress.wait_for(lambda: self.num_bytes >= num_bytes)


class Relay:
    """Listens on ``host`` and passes bytes to and from ``target`` (host and port). Use as an async
    context manager; everything may be changed while bytes pass. ``delay_s``: the delay of each
    byte, in each direction. ``bytes_per_s``: the rate of all connections together in a direction;
    None: no limit.

    A relay is *open* at first. ``hold`` keeps bytes back until ``restore``, so that they arrive
    late; ``cut`` resets all connections, and each new one; ``half_open`` closes the target's ends
    only, so that clients keep connections without a peer, as after the loss of a machine.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        host: str = "127.0.0.1",
        delay_s: float = 0.0,
        bytes_per_s: float | None = None,
    ) -> None:
        if delay_s < 0:
            raise InvalidArgument(f"delay_s is {delay_s}: choose 0 or more", param="delay_s")
        if bytes_per_s is not None and bytes_per_s <= 0:
            raise InvalidArgument(
                f"bytes_per_s is {bytes_per_s}: choose more than 0, or None for no bound",
                param="bytes_per_s",
            )
        self.target = target
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self._host = host
        self._state: State = "open"
        self._hold_at: int | None = None
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._there, self._back = _Way(), _Way()
        self._hold_way = self._there
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections.values(), return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> tuple[str, int]:
        """The address at which the relay listens."""
        assert self._server is not None, "used before it was entered"
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def state(self) -> State:
        return self._state

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    @property
    def num_bytes_there(self) -> int:
        """Bytes that were passed to the target since the relay's start."""
        return self._there.num_bytes

    @property
    def num_bytes_back(self) -> int:
        """Bytes that were passed to clients since the relay's start."""
        return self._back.num_bytes

    async def passed_there(self, num_bytes: int) -> None:
        """Return when ``num_bytes_there`` is at least ``num_bytes``."""
        await self._there.passed(num_bytes)

    async def passed_back(self, num_bytes: int) -> None:
        """Return when ``num_bytes_back`` is at least ``num_bytes``."""
        await self._back.passed(num_bytes)

    # -- what happens to the link ------------------------------------------------------------------

    def hold(self, after_bytes: int = 0, *, back: bool = False) -> None:
        """Keep all bytes back, in both directions, without losing any. ``after_bytes``: begin after
        this number of further bytes to the target or, with ``back``, to the clients."""
        self._hold_way = self._back if back else self._there
        self._hold_at = self._hold_way.num_bytes + after_bytes
        if not after_bytes:
            self._held()

    def cut(self) -> None:
        """Reset all connections at both ends, and each new one."""
        self._state = "cut"
        self._hold_at = None
        self._may_pass.set()
        for connection in self._connections:
            connection.cut()

    def half_open(self) -> None:
        """Reset the target's ends only. Clients keep their connections and can open new ones; the
        relay accepts what they send and sends nothing back."""
        self._state = "half_open"
        self._hold_at = None
        self._may_pass.set()
        for connection in self._connections:
            connection.half_open()

    def restore(self) -> None:
        """Pass on the held bytes and all later ones. Connections that were cut stay cut. Half-open
        ones are reset, because the target does not know them."""
        self._state = "open"
        self._hold_at = None
        self._may_pass.set()
        for connection in self._connections:
            if connection.is_half_open:
                connection.cut()

    def _held(self) -> None:
        self._state = "held"
        self._may_pass.clear()

    # -- its connections ---------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection((reader, writer))
        task = asyncio.current_task()
        assert task is not None
        self._connections[connection] = task
        try:
            await self._run(connection)
        except OSError:  # the target accepts no connection, or a client that waited has gone
            connection.cut()
        finally:
            connection.end()
            del self._connections[connection]

    async def _run(self, connection: _Connection) -> None:
        if self._state not in ("cut", "half_open"):
            connection.target = await asyncio.open_connection(*self.target)
        if self._state == "cut":
            connection.cut()
        elif connection.target is not None and not connection.is_half_open:
            await self._pass(connection)
        if connection.is_half_open or self._state == "half_open":
            connection.half_open()
            await _swallow(connection.client[0])

    async def _pass(self, connection: _Connection) -> None:
        assert connection.target is not None
        (client_reader, client_writer), (reader, writer) = connection.client, connection.target
        async with asyncio.TaskGroup() as pumps:
            for pump in (
                self._pump(client_reader, writer, self._there, connection),
                self._pump(reader, client_writer, self._back, connection),
            ):
                connection.pumps.append(pumps.create_task(pump))

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: _Way,
        connection: _Connection,
    ) -> None:
        """Pass on the bytes of ``reader`` to its end. Bytes that wait do not block reading, so a
        delay does not limit the rate."""
        waiting: asyncio.Queue[tuple[bytes | None, float]] = asyncio.Queue(_MAX_PIECES)
        reading = asyncio.create_task(_read_into(reader, waiting))
        try:
            while True:
                piece, came_s = await waiting.get()
                await self._due(way, len(piece or b""), came_s)
                if piece is None:
                    connection.cut()
                elif piece:
                    for part in self._parts(piece, way):
                        await self._may_pass.wait()
                        writer.write(part)
                        await writer.drain()
                        await way.count(len(part))
                        self._hold_now(way)
                    continue
                elif writer.can_write_eof():
                    writer.write_eof()
                return
        except OSError:  # one end is closed: then the other one is closed, too
            connection.cut()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _due(self, way: _Way, num_bytes: int, came_s: float) -> None:
        """Wait until a piece that arrived at ``came_s`` may be passed on."""
        due_s = came_s + self.delay_s
        if self.bytes_per_s is not None:
            due_s = way.free_s = max(due_s, way.free_s) + num_bytes / self.bytes_per_s
        if (wait_s := due_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(wait_s)
        await self._may_pass.wait()

    def _parts(self, piece: bytes, way: _Way) -> list[bytes]:
        """``piece``, in two parts if the hold begins within it."""
        if self._hold_at is None or way is not self._hold_way:
            return [piece]
        num_passed = max(0, self._hold_at - way.num_bytes)
        return [part for part in (piece[:num_passed], piece[num_passed:]) if part]

    def _hold_now(self, way: _Way) -> None:
        if self._hold_at is not None and way is self._hold_way and way.num_bytes >= self._hold_at:
            self._held()


class _Connection:
    """A client's connection and the one to the target."""

    def __init__(self, client: _Ends) -> None:
        self.client = client
        self.target: _Ends | None = None
        self.pumps: list[asyncio.Task[None]] = []
        self.is_half_open = False

    def end(self) -> None:
        """End the connection; bytes that were written are still sent."""
        for _, writer in (self.client, *([self.target] if self.target else ())):
            writer.close()

    def cut(self) -> None:
        self._cut_target()
        _reset(self.client[1])

    def half_open(self) -> None:
        self.is_half_open = True
        self._cut_target()

    def _cut_target(self) -> None:
        for pump in self.pumps:
            pump.cancel()
        if self.target is not None:
            _reset(self.target[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection, as when the peer is lost, instead of closing it properly."""
    if not writer.transport.is_closing():
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        writer.transport.abort()


async def _swallow(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PIECE_BYTES):
        pass


async def _read_into(
    reader: asyncio.StreamReader, waiting: asyncio.Queue[tuple[bytes | None, float]]
) -> None:
    """Read to the end, which is an empty piece, or None if the connection was reset."""
    piece: bytes | None = b"-"
    while piece:
        try:
            piece = await reader.read(_PIECE_BYTES)
        except OSError:
            piece = None
        await waiting.put((piece, asyncio.get_running_loop().time()))
