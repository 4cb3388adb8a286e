"""``KVTransport`` over TCP: one thread, one listening socket, a connection for each send.

Between engines of one machine the bytes of pieces are in memory that both share
(``shared_window``), found out when a send begins; between engines that both have NIXL the sender
writes them to memory of the receiver (``nixl``). The rest is the same. Pieces are framed
(``tcp_frames``), verified by a checksum and acknowledged when they are written, so that a sender
has at most a window of them under way. Connections are not encrypted; a lease's key protects its
slots from engines that were not given it, not from who can read the network.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from quire.core.errors import ConfigError, InvalidArgument, QuireError, TransferFailed
from quire.core.exchange import SendTarget
from quire.core.kv_transport import KVSink, KVSource, SendResult, carried_by
from quire.exchange.agreement import ended_here
from quire.exchange.buffers import Buffers
from quire.exchange.leases import Leases
from quire.exchange.limits import ExchangeLimits
from quire.exchange.nixl import NixlMemory
from quire.exchange.shared_window import SharedWindows
from quire.exchange.tcp_frames import Frames, to_receiver, to_sender
from quire.exchange.tcp_receiving import IncomingMemory, receive
from quire.exchange.tcp_sending import PieceMemory, Window, WrittenByNixl, send

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNTIL_NEXT_S = 0.1
"""Pause after a connection that could not be accepted, which usually means that the process has no
descriptor left: the next attempt would fail at once, too."""

_KEPT_WINDOWS = 2
"""Shared windows that are kept for later sends."""


class TcpTransport:
    """Listens at ``address`` ("tcp://HOST:PORT", port 0: any free one), which must be the one that
    other engines reach it at. ``has_nixl``: pieces go through NIXL to engines that have it too.

    Raises:
        ConfigError: no such address, its port is taken, or there is no NIXL.
    """

    def __init__(
        self,
        address: str = "tcp://127.0.0.1:0",
        limits: ExchangeLimits | None = None,
        *,
        has_nixl: bool = False,
    ) -> None:
        self._limits = limits or ExchangeLimits()
        self._nixl = NixlMemory(self._limits.window_bytes) if has_nixl else None
        self._leases = Leases()
        self._listener, self._address = _listen(address)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_connections = 0
        self._next: asyncio.TimerHandle | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._loop = asyncio.SelectorEventLoop()
        self._buffers = Buffers(self._limits.num_sends)
        self._windows = SharedWindows(self._limits.window_bytes, _KEPT_WINDOWS)
        self._sending = asyncio.Semaphore(self._limits.num_sends)
        self._thread = threading.Thread(target=self._run, name="quire-exchange", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self._address

    def accept(self, lease: int, key: bytes, sink: KVSink) -> None:
        self._leases.accept(lease, key, sink)

    def refuse(self, lease: int) -> None:
        self._leases.refuse(lease)

    def send(
        self, target: SendTarget, source: KVSource, on_end: Callable[[SendResult], None]
    ) -> None:
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._begin_send, target, source, on_end)
                return
        on_end(SendResult(0, ended_here()))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._listen()
        self._loop.run_forever()
        self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin_send(
        self, target: SendTarget, source: KVSource, on_end: Callable[[SendResult], None]
    ) -> None:
        """The end is told by the task's own end: one that is cancelled before its first step runs
        no ``finally``."""
        window = Window(self._limits)

        def end(task: asyncio.Task[QuireError | None]) -> None:
            error = ended_here() if task.cancelled() else task.result()
            carriers = window.carriers if window.num_written else ()
            on_end(SendResult(window.num_written, error, carried_by(carriers)))

        self._begin(self._send(target, source, window)).add_done_callback(end)

    def _begin_receive(self, connection: socket.socket) -> None:
        def end(task: asyncio.Task[None]) -> None:
            connection.close()
            self._num_connections -= 1

        self._num_connections += 1
        self._begin(self._receive(connection)).add_done_callback(end)

    def _end(self) -> None:
        ending = asyncio.ensure_future(self._cancel_all())
        ending.add_done_callback(lambda _: self._loop.stop())

    async def _cancel_all(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._windows.close()
        if self._nixl is not None:
            self._nixl.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        """In one go: a coroutine that is cancelled while it accepts would lose a connection."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return  # who asked has gone
        except OSError as exc:
            logger.warning("no connection can be accepted now: %s", exc)
            self._loop.remove_reader(self._listener.fileno())
            self._next = self._loop.call_later(_UNTIL_NEXT_S, self._listen)
            return
        if self._num_connections < self._limits.num_connections:
            connection.setblocking(False)
            self._begin_receive(connection)
        else:
            connection.close()

    async def _receive(self, connection: socket.socket) -> None:
        memory = IncomingMemory(self._buffers.take(), self._nixl)
        try:
            frames = Frames(connection, to_receiver)
            await receive(frames, self._leases, self._limits, memory)
        except Exception:
            logger.exception("a connection from another engine has failed")
        finally:
            memory.close()
            self._buffers.give(memory.buffer)

    async def _send(
        self, target: SendTarget, source: KVSource, window: Window
    ) -> QuireError | None:
        """Returns why it has failed; None if it has not."""
        try:
            async with self._sending:
                await self._connected(target, source, window)
        except QuireError as exc:
            return exc
        except TimeoutError:
            return TransferFailed(f"the engine at {target.address} is silent")
        except OSError as exc:
            return TransferFailed(f"the engine at {target.address} cannot be reached: {exc}")
        except Exception as exc:
            logger.exception("a send to %s has failed", target.address)
            return TransferFailed(f"a send to {target.address} has failed: {exc!r}")
        return None

    async def _connected(self, target: SendTarget, source: KVSource, window: Window) -> None:
        host, port = _parse(target.address, InvalidArgument)
        async with asyncio.timeout(self._limits.greeting_s):
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            connection = socket.socket(*found[0][:3])
            try:
                connection.setblocking(False)
                await self._loop.sock_connect(connection, found[0][4])
            except BaseException:
                connection.close()
                raise
        memory = PieceMemory(
            self._buffers.take(),
            self._windows.take() if self._limits.shares_memory else None,
            self._by_nixl(),
        )
        is_read = False
        try:
            frames = Frames(connection, to_sender)
            await send(frames, target, source, self._limits, window, memory)
            is_read = True
        finally:
            self._buffers.give(memory.buffer)
            if memory.shared is not None:
                self._windows.give(memory.shared, is_read=is_read)
            if memory.by_nixl is not None:
                memory.by_nixl.nixl.give(memory.by_nixl.own)
            connection.close()

    def _by_nixl(self) -> WrittenByNixl | None:
        own = None if self._nixl is None else self._nixl.take()
        return None if self._nixl is None or own is None else WrittenByNixl(self._nixl, own)


def _parse(address: str, error: type[QuireError]) -> tuple[str, int]:
    """Host and port of "tcp://HOST:PORT"; raises ``error``."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or address.partition("//")[0] != "tcp:" or parts.path:
        raise error(f"{address!r} is no address of a data plane: write tcp://HOST:PORT")
    return host, port


def _listen(address: str) -> tuple[socket.socket, str]:
    host, port = _parse(address, ConfigError)
    if host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"data_address is {address}, which names no host: other engines send to this address, "
            "so name the one that they reach this machine at"
        )
    listener: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(*found[:3])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
        listener.listen()
    except OSError as exc:
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"data_address is {address}, where no K and V can be received: {exc}"
        ) from exc
    listener.setblocking(False)
    name = f"[{host}]" if ":" in host else host
    return listener, f"tcp://{name}:{listener.getsockname()[1]}"
