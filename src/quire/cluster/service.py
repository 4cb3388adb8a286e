"""Runs a router behind HTTP, from its start to a clean exit.

Owns the order of these steps. SIGTERM or SIGINT stop the listener: running requests have the drain
time to end, a second signal cuts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable

from quire.cluster.app import make_router
from quire.cluster.config import RouterConfig
from quire.core.config import ServerConfig
from quire.core.event_loops import new_event_loop
from quire.server.listening.binding import bind
from quire.server.listening.listener import Listener, make_listener
from quire.server.listening.open_files import allow_connections
from quire.server.stop_request import StopRequest, url_of

logger = logging.getLogger(__name__)

_CONNECTIONS_EACH = 2
"""A request through a router has a connection on either side."""


class RouterService:
    """One router and its listener on one loop. ``sock`` is bound already."""

    def __init__(self, config: RouterConfig, server: ServerConfig, sock: socket.socket) -> None:
        self._config = config
        self._server = server
        self._sock = sock
        self.request_stop = StopRequest()

    @property
    def url(self) -> str:
        return url_of(self._sock)

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until ``request_stop``. ``on_ready`` is called when requests can arrive.

        Raises:
            QuireError: the strategy is refused.
        """
        router = await make_router(self._config, self._server)
        async with router.running():
            limit_s = self._server.drain_timeout_s
            listener = make_listener(
                router, self._server, has_lifespan=False, close_timeout_s=limit_s
            )
            listening = asyncio.create_task(listener.serve(sockets=[self._sock]))
            stopping = asyncio.create_task(self.request_stop.asked.wait())
            if on_ready is not None:
                on_ready()
            try:
                await asyncio.wait({stopping, listening}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                await self._drain(listener, listening)

    async def _drain(self, listener: Listener, listening: asyncio.Task[None]) -> None:
        listener.stop()
        hurrying = asyncio.create_task(self.request_stop.asked_twice.wait())
        await asyncio.wait({listening, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        listener.hurry()
        await listening


def run(
    config: RouterConfig, server: ServerConfig, *, on_ready: Callable[[str], None] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT. Blocks; call it from the main thread.

    Raises:
        QuireError: the address cannot be bound, or the strategy is refused.
    """

    async def main() -> None:
        allow_connections(_CONNECTIONS_EACH * server.max_requests)
        with contextlib.closing(bind(server)) as sock:
            service = RouterService(config, server, sock)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, service.request_stop)
            await service.run(None if on_ready is None else lambda: on_ready(service.url))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
