"""The application behind the keys: every request of a node's API, placed and passed on.

Owns the life of a request in the router: read, placed, answered, and ended at the engines when its
client leaves. Must not know how an engine is chosen.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from starlette.types import Receive, Scope, Send

from quire.cluster.metrics import RouterMetrics
from quire.cluster.passing.attaching import Attachments
from quire.cluster.passing.awaited_launches import awaiting
from quire.cluster.passing.background import BackgroundResponses
from quire.cluster.passing.delivery import BrokenAnswer, Delivery
from quire.cluster.passing.dispatch import Dispatcher
from quire.cluster.passing.everywhere import AllEngines
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.passing.resuming import resumable
from quire.cluster.passing.retelling import retold
from quire.cluster.refusing import refuse
from quire.cluster.requests.places import AllNodes, MergedLists, NotRouted, place_of
from quire.cluster.requests.reading import read_request
from quire.cluster.requests.request import Request
from quire.core.config import ServerConfig
from quire.core.errors import QuireError
from quire.server.answers.disconnects import while_connected
from quire.server.answers.write_limit import SlowReader, WriteLimit
from quire.server.errors.errors import HttpError
from quire.server.listening.piece_writer import STATE_KEY

logger = logging.getLogger(__name__)


class Proxy:
    """Answers HTTP requests and WebSockets. ``resume_key``: the cluster's key if answers are to go
    on at another engine, else None."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        everyone: AllEngines,
        attachments: Attachments,
        metrics: RouterMetrics,
        config: ServerConfig,
        *,
        resume_key: str | None,
        background: BackgroundResponses,
    ) -> None:
        self._background = background
        self._resume_key = resume_key
        self._dispatcher = dispatcher
        self._everyone = everyone
        self._attachments = attachments
        self._metrics = metrics
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._attachments.attach(scope, receive, send)
            return
        started = asyncio.get_running_loop().time()
        try:
            request = await read_request(scope, receive, self._config)
        except HttpError as error:
            await refuse(error, scope, receive, send)
            return
        if self._resume_key is not None:
            request = retold(resumable(awaiting(request)), self._resume_key)
        call = _Call(self, request, scope, send, started)
        work = asyncio.create_task(call.run())
        # an upload's body is read by the work itself, which then notices a disconnect
        watched = None if request.upload else receive
        try:
            await while_connected(work, watched, writes=call.writes)
        finally:
            request.work.end()
        await self._finish(call, work, receive)

    async def _finish(self, call: _Call, work: asyncio.Task[None], receive: Receive) -> None:
        request = call.request
        error = None if work.cancelled() else work.exception()
        outcome = "aborted" if work.cancelled() or isinstance(error, SlowReader) else "finished"
        if error is not None and outcome == "finished":
            outcome = "failed"
        self._metrics.ended(call.engine, outcome)
        if isinstance(error, (QuireError, HttpError)) and not call.has_started:
            await refuse(error, call.scope, receive, call.send)
        elif isinstance(error, BrokenAnswer):
            logger.warning("request %s: its client's connection is cut", request.request_id)
            raise error
        elif error is not None and not isinstance(error, SlowReader):
            raise error

    async def opened(self, request: Request) -> OpenedAnswer:
        """Return the answer to ``request``, begun.

        Raises:
            QuireError: none begins.
        """
        known = await self._background.known(request)
        if known is not None:
            return known
        return await self._background.noted(request, await self._placed(request))

    async def _placed(self, request: Request) -> OpenedAnswer:
        place = place_of(request)
        if isinstance(place, NotRouted):
            raise HttpError(404, f"{request.path}: {place.remedy}", code="not_found")
        if isinstance(place, MergedLists):
            return await self._everyone.listed(request, is_paged=place.is_paged)
        if isinstance(place, AllNodes):
            return await self._everyone.told(request)
        return await self._dispatcher.open(request, place)

    def began(self, engine: str, elapsed_s: float) -> None:
        self._metrics.began(engine, elapsed_s)

    def limit(self) -> WriteLimit:
        return WriteLimit(self._config.write_timeout_s)


class _Call:
    """One request with its answer."""

    def __init__(
        self, proxy: Proxy, request: Request, scope: Scope, send: Send, started_s: float
    ) -> None:
        self._proxy = proxy
        self._started_s = started_s
        self.request = request
        self.scope = scope
        self.send = send
        self.writes = proxy.limit()
        self.engine = ""
        self.has_started = False

    async def run(self) -> None:
        opened = await self._proxy.opened(self.request)
        self.engine = opened.answer.engine
        self.has_started = True
        self._proxy.began(self.engine, asyncio.get_running_loop().time() - self._started_s)
        # pieces need not pass the middlewares, which look at the start of a response alone
        state = self.scope["state"]
        send_body = cast(Send, state.get("send_body", self.send))
        request = self.request
        delivery = Delivery(
            opened, request.path, request.request_id, self.writes, state.get(STATE_KEY)
        )
        await delivery.run(self.send, send_body)
