"""Runs a node behind HTTP: start, readiness, draining, a clean exit.

Owns the order of a server's life. HTTP answers from the first moment (``/ready`` is 503 while the
node loads). SIGTERM or SIGINT start draining: new work is refused with 503 and ``retry-after``,
running work finishes within the limit, then the listener closes. A second signal cancels the work:
its clients are notified, whole answers by their status and streams by a last event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial

from quire.core.config import EngineConfig, NodeConfig, ServerConfig
from quire.core.event_loops import new_event_loop
from quire.core.interfaces import EngineTransport
from quire.node import ModelFiles, Node, SessionLimits, check_sources, read_model_files
from quire.programs.workflow.applications import Applications
from quire.server.capacity import capacity_line
from quire.server.data_directory import check_data_directory, sole_server
from quire.server.listening.binding import bind
from quire.server.listening.open_files import allow_connections
from quire.server.stop_request import StopRequest, url_of

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
TransportFactory = Callable[[EngineConfig], EngineTransport]
Progress = Callable[[str, float], None]


class Service:
    """One node and its HTTP listener on one event loop.

    ``sock`` is bound already (see ``bind``), so that the address is known before anything starts.
    ``workflows``: the workflows that it serves (default: the shipped ones).
    """

    def __init__(
        self,
        node: Node,
        config: NodeConfig,
        server: ServerConfig,
        sock: socket.socket,
        workflows: Applications | None = None,
    ):
        self._workflows = workflows
        self._node = node
        self._config = config
        self._server = server
        self._sock = sock
        self.request_stop = StopRequest()

    @property
    def url(self) -> str:
        return url_of(self._sock)

    async def run(
        self, progress: Progress | None = None, on_ready: Callable[[], None] | None = None
    ) -> None:
        """Serve until ``request_stop``. ``on_ready`` is called when the node has started.

        Raises:
            QuireError: the node could not start; the listener is closed by then.
        """
        # the node first: every request may ask for its health, and its engines load
        # while the web framework is imported
        starting = asyncio.create_task(self._node.start(progress))
        await asyncio.sleep(0)
        from quire.server.app import create_app
        from quire.server.chat.prompt import warn_of_broken_templates
        from quire.server.listening.listener import make_listener

        app = create_app(self._node, self._server, self._config.tenants, self._workflows)
        listener = make_listener(app, self._server)
        listening = asyncio.create_task(listener.serve(sockets=[self._sock]))
        stopping = asyncio.create_task(self.request_stop.asked.wait())
        try:
            await asyncio.wait({starting, stopping, listening}, return_when="FIRST_COMPLETED")
            if starting.done():
                starting.result()
                warn_of_broken_templates(self._node.models())
                self._log_capacity()
                logger.info("ready on %s", self.url)
                if on_ready is not None:
                    on_ready()
                await asyncio.wait({stopping, listening}, return_when="FIRST_COMPLETED")
        finally:
            stopping.cancel()
            started = starting.done() and not starting.cancelled() and not starting.exception()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self._drain(self._server.drain_timeout_s if started else 0.0)
            listener.stop()
            await listening

    def _log_capacity(self) -> None:
        num_engines = {engine.name: engine.replicas for engine in self._config.engines}
        for model in self._node.models():
            if model.adapter is None:
                line = capacity_line(model.info, num_engines.get(model.id, 1))
                logger.info("%s: %s", model.id, line)

    async def _drain(self, limit_s: float) -> None:
        """Stop the node: running work has ``limit_s`` to finish, or until the second call of
        ``request_stop``."""
        if limit_s:
            logger.info(
                "draining for at most %g s; a second Ctrl-C or SIGTERM stops at once", limit_s
            )
        draining = asyncio.create_task(self._node.stop(limit_s))
        hurrying = asyncio.create_task(self.request_stop.asked_twice.wait())
        await asyncio.wait({draining, hurrying}, return_when="FIRST_COMPLETED")
        hurrying.cancel()
        if not draining.done():
            logger.warning("asked twice to stop: running work is cancelled")
            # end the calls first: their clients receive the reason before the listener closes
            await self._node.stop()
        await draining


def make_node(
    config: NodeConfig,
    server: ServerConfig,
    *,
    transport_factory: TransportFactory | None = None,
    model_files: Callable[[EngineConfig], ModelFiles] = read_model_files,
) -> Node:
    """Return a node with the limits that ``server`` sets for its clients' sessions."""
    return Node(
        config,
        transport_factory=transport_factory,
        model_files=model_files,
        session_limits=SessionLimits(
            ttl_s=server.session_ttl_s, max_ttl_s=server.max_session_ttl_s
        ),
    )


def run(
    config: NodeConfig,
    server: ServerConfig,
    *,
    transport_factory: TransportFactory | None = None,
    workflows: Applications | None = None,
    progress: Progress | None = None,
    on_listening: Callable[[str], None] | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Blocks; call it from the main thread.

    ``workflows``: the workflows that the node serves (default: the shipped ones). ``on_listening``
    is called with the URL once the port is bound, before the models are loaded, ``on_ready`` when
    they all are.

    Raises:
        QuireError: a model is missing, the address cannot be bound, the data directory cannot be
            written or is in use, or the node could not start.
    """
    if transport_factory is None:
        check_sources(config)
    check_data_directory(server.data_dir)
    check_data_directory(config.data_dir)

    async def main() -> None:
        allow_connections(server.max_requests)
        with contextlib.closing(bind(server)) as sock:
            node = make_node(config, server, transport_factory=transport_factory)
            service = Service(node, config, server, sock, workflows)
            loop = asyncio.get_running_loop()
            for number in _SIGNALS:
                loop.add_signal_handler(number, service.request_stop)
            if on_listening is not None:
                on_listening(service.url)
            ready = None if on_ready is None else partial(on_ready, service.url)
            await service.run(progress, ready)

    with (
        sole_server(server.data_dir),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(main())
