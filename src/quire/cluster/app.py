"""A router's application and all its parts, put together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.cluster.config import RouterConfig
from quire.cluster.engines.fleet import Fleet, Member
from quire.cluster.engines.node_engine import ClusterKey, NodeEngine
from quire.cluster.metrics import RouterMetrics
from quire.cluster.nodes.addresses import NodeAddress
from quire.cluster.nodes.index_feed import IndexFeed
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.page_tree import PageTree
from quire.cluster.nodes.record_reader import RecordReader, reader_name
from quire.cluster.nodes.watch import NodeWatch
from quire.cluster.own_routes import AdminKey, OwnRoutes
from quire.cluster.passing.attaching import Attachments
from quire.cluster.passing.background import BackgroundResponses
from quire.cluster.passing.dispatch import Dispatcher
from quire.cluster.passing.everywhere import AllEngines
from quire.cluster.passing.moving import AnswerMoves
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.passing.overview import Overview
from quire.cluster.passing.program_moves import ProgramMoves
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.passing.proxy import Proxy
from quire.cluster.passing.relieving import relieve
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.locating import Locator
from quire.cluster.requests.places import AnyNode
from quire.cluster.requests.request import Request
from quire.cluster.routing.interrupting import Interrupter
from quire.cluster.routing.loop_guard import LoopGuard
from quire.cluster.routing.running import RunningStrategy, Try
from quire.cluster.routing.strategy import Strategy, load
from quire.core.config import ServerConfig
from quire.server.security import Authenticator, EdgeMiddleware, KeyMiddleware, OriginPolicy


class Router:
    """An ASGI application over the nodes of ``config``. In the context of ``running`` the nodes are
    watched and the strategy's file is followed. ``try_apart``: what later strategies must pass."""

    def __init__(
        self,
        config: RouterConfig,
        server: ServerConfig,
        strategy: Strategy,
        try_apart: Try | None = None,
    ) -> None:
        self._config = config
        self.pages = PageTree()
        self._locator = Locator(lambda: self.nodes, lambda path: self.rescue.outdated(path))
        self._reader = reader_name()
        self.rescue = ProgramRescue(
            lambda: self.fleet.engines, ClusterKey(config.cluster_key), self._locator
        )
        self.fleet = Fleet(
            config.nodes, self._member, self.pages, lambda node: self.background.removed(node)
        )
        self.strategy = RunningStrategy(strategy, try_apart=try_apart)
        self.metrics = RouterMetrics(self.fleet, self.strategy, self.rescue)
        self.moves = AnswerMoves(self.fleet, self.metrics)
        self._app = self._layers(server)

    @property
    def nodes(self) -> list[RoutedNode]:
        return [engine.node for engine in self.fleet.engines]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["send_body"] = send
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Router]:
        """Run the router's tasks. The nodes have been probed once when this is entered."""
        loop = asyncio.get_running_loop()
        guard = LoopGuard(
            post=loop.call_soon_threadsafe,
            thread_id=threading.get_ident(),
            name_of=self._strategy_of,
            max_block_s=self._config.max_block_s,
            interrupt=(interrupter := Interrupter(self._strategy_of)),
        )
        async with self.fleet.running():
            following = asyncio.create_task(self.strategy.follow_file())
            interrupter.start()
            guard.start()
            try:
                yield self
            finally:
                guard.stop()
                interrupter.stop()
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def _member(self, address: NodeAddress) -> Member:
        config, cluster_key = self._config, ClusterKey(self._config.cluster_key)
        node = RoutedNode(
            address,
            node_key=config.node_key,
            hysteresis=config.hysteresis,
            cluster_headers=cluster_key.headers(),
        )
        node.on_change = partial(self._changed, node)
        watch = NodeWatch(node, config.times, cluster_key.headers())
        return Member(
            NodeEngine(node, cluster_key, watch.suspect, self.pages, self._move),
            watch,
            None if cluster_key.key is None else IndexFeed(node, self.pages, cluster_key.headers()),
            partial(self._keep_records, node, watch) if config.resumes else None,
        )

    def _changed(self, node: RoutedNode) -> None:
        self.background.changed(node)
        relieve(self.fleet)

    async def _keep_records(self, node: RoutedNode, watch: NodeWatch) -> None:
        headers = ClusterKey(self._config.cluster_key).headers()
        reader = RecordReader(node, headers, self._reader, asyncio.get_running_loop().time)
        await self.rescue.keep(reader, watch.suspect)

    async def _begin(self, request: Request) -> OpenedAnswer:
        return await self.dispatcher.open(request, AnyNode())

    async def _move(self, answer: RoutedAnswer, source: NodeEngine, target: NodeEngine) -> bool:
        return await self.moves.move(answer, source, target)

    def _strategy_of(self, filename: str) -> str | None:
        shifts = (self.strategy.current, *self.strategy.leaving)
        return next(
            (one.strategy.label for one in shifts if one.strategy.filename == filename), None
        )

    def _layers(self, server: ServerConfig) -> ASGIApp:
        locator = self._locator
        self.dispatcher = Dispatcher(self.fleet, self.strategy, locator, self.moves, self.rescue)
        resume_key = self._config.cluster_key if self._config.resumes else None
        self.background = BackgroundResponses(self._begin, resume_key)
        app: ASGIApp = Proxy(
            self.dispatcher,
            AllEngines(self.fleet, self.rescue.elsewhere),
            Attachments(locator, self.rescue, server, self._config.node_key),
            self.metrics,
            server,
            resume_key=resume_key,
            background=self.background,
        )
        app = Overview(app, self.fleet, server.write_timeout_s, self.rescue.elsewhere)
        app = KeyMiddleware(app, authenticator=Authenticator(self._config.tenants))
        app = OwnRoutes(
            app,
            fleet=self.fleet,
            strategy=self.strategy,
            moves=self.moves,
            program_moves=ProgramMoves(self.fleet, ClusterKey(self._config.cluster_key), locator),
            metrics=self.metrics,
            admin=AdminKey(self._config.admin_key),
            config=server,
        )
        return EdgeMiddleware(
            app,
            origins=OriginPolicy(server),
            max_requests=server.max_requests,
            refusals=self.metrics,
        )


async def make_router(
    config: RouterConfig, server: ServerConfig, try_apart: Try | None = None
) -> Router:
    """Return the router of ``config``, whose strategy has been tried.

    Raises:
        InvalidArgument: the strategy is refused.
    """
    return Router(config, server, await load(config.strategy), try_apart)
