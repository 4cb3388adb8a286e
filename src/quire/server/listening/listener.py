"""An HTTP listener: uvicorn around an application, with limits on its clients.

Must not know what the application does: nodes and routers listen in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from quire.core.config import ServerConfig
from quire.server.listening.connections import ConnectionTable
from quire.server.listening.gathered_writes import GatheredWrites
from quire.server.listening.open_files import MAX_CONNECTIONS, max_connections
from quire.server.listening.simple_clients import SimpleClientsProtocol
from quire.server.listening.websocket_protocol import WebSocketProtocol

logger = logging.getLogger(__name__)

_KEEP_ALIVE_S = 30
_MIN_BACKLOG, _MAX_BACKLOG = 64, 2048
_CLOSE_TIMEOUT_S = 5
"""How long connections may stay open once the application has drained."""

_MAX_FRAME_BYTES = 2 << 20


_DATE_S = 1.0
"""How often the date in the answers' headers is renewed."""


class _Open(set[Any]):
    """Connections or tasks, of which ``ended`` waits for the last one."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: asyncio.Future[None] | None = None

    def discard(self, one: Any) -> None:
        super().discard(one)
        if not self and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def remove(self, one: Any) -> None:
        if one not in self:
            raise KeyError(one)
        self.discard(one)

    async def ended(self) -> None:
        """For one caller at a time."""
        while self:  # one may have come since the last has gone: an upgraded connection has
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: a signal first drains the application, then stops the
    listener. Without its pauses too: it looks ten times a second whether it has to stop, and
    whether everything has ended."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._connections = self.server_state.connections = _Open()
        self._tasks = self.server_state.tasks = _Open()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()

    def stop(self) -> None:
        """Accept nothing more; ``serve`` returns when the open connections have had their answers,
        or after the close timeout."""
        self.should_exit = True
        self._stopping.set()

    def hurry(self) -> None:
        """Wait no longer for open connections."""
        self.force_exit = True
        self._hurrying.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # renews the date
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        for connection in list(self._connections):
            connection.shutdown()
        ending = asyncio.create_task(self._ended())
        hurrying = asyncio.create_task(self._hurrying.wait())
        try:
            limit_s = self.config.timeout_graceful_shutdown
            await asyncio.wait(
                {ending, hurrying}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not ending.done() and not self.force_exit:
                late = list(self._tasks)
                logger.error("%d requests have not ended in time: they are cancelled", len(late))
                for task in late:
                    task.cancel("the listener has stopped")
        finally:
            ending.cancel()
            hurrying.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _ended(self) -> None:
        await self._connections.ended()
        await self._tasks.ended()


def make_listener(
    app: ASGIApp,
    server: ServerConfig,
    *,
    has_lifespan: bool = True,
    close_timeout_s: float = _CLOSE_TIMEOUT_S,
) -> Listener:
    """Return a listener that serves ``app`` once its ``serve`` is called with a bound socket.
    ``has_lifespan``: ``app`` handles the events of its start and end. After a stop, connections may
    stay open for ``close_timeout_s``."""
    limit = min(server.max_connections or MAX_CONNECTIONS, max_connections())
    protocol: Any = partial(
        SimpleClientsProtocol,
        writes=GatheredWrites(),
        table=ConnectionTable(limit),
        head_timeout_s=server.head_timeout_s,
    )
    return Listener(
        uvicorn.Config(
            app,
            http=protocol,
            ws=WebSocketProtocol,
            lifespan="on" if has_lifespan else "off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # connections accepted in one turn of the loop are examined after it
            backlog=max(_MIN_BACKLOG, min(_MAX_BACKLOG, limit // 8)),
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(close_timeout_s),
            ws_max_size=_MAX_FRAME_BYTES,
        )
    )
