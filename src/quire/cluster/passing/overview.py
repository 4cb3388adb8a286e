"""One view over all nodes: ``GET /v1/programs/changes``, which ``quire top`` and the page ``/ui``
read, and the page itself.

Owns when the nodes are asked. ``requests/merging.py`` joins their answers. A request that names a
node (``x-quire-node``) goes to that node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.refusing import refuse
from quire.cluster.requests.merging import (
    ReaderPlace,
    Row,
    has_to_begin_anew,
    is_told,
    merged,
    read_place,
)
from quire.cluster.requests.places import NODE_HEADER
from quire.cluster.requests.request import RawHeaders
from quire.core.errors import UNREADABLE, CapacityError, EngineLost, QuireError, QuotaExceeded
from quire.server.answers.event_stream import HEARTBEAT, HEARTBEAT_S, EventStream
from quire.server.errors.errors import HttpError
from quire.server.events import DATA_EVENTS, data_event
from quire.server.page import PAGE_PATH, is_of_page, read_page_files
from quire.server.requests.query_names import check_query

_LIVE = "/v1/programs/changes"
_TIMEOUT_S = 5.0
_MAX_BYTES = 64 << 20
_INTERVAL_S = 1.0
"""Time between two looks for one reader: each look asks every node."""

_MAX_READERS = 64
_ACCESS = (b"authorization", b"x-api-key")


class Overview:
    """The layer around ``app`` that serves these paths. ``elsewhere``: see ``AllEngines``."""

    def __init__(
        self,
        app: ASGIApp,
        fleet: Fleet,
        write_timeout_s: float,
        elsewhere: Callable[[str], Collection[str]] = lambda name: (),
    ) -> None:
        self._app = app
        self._elsewhere = elsewhere
        self._fleet = fleet
        self._write_timeout_s = write_timeout_s
        self._page = read_page_files()
        self.num_readers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_mine = scope["type"] == "http" and (path == _LIVE or is_of_page(path))
        if not is_mine or scope["method"] not in ("GET", "HEAD") or _names_a_node(scope):
            await self._app(scope, receive, send)
            return
        try:
            response = self._file(scope) if is_of_page(path) else await self._changes(scope)
            await response(scope, receive, send)
        except (QuireError, HttpError) as error:
            await refuse(error, scope, receive, send)

    async def look(self, place: ReaderPlace, headers: RawHeaders) -> Row:
        """Return what has changed at all nodes since ``place``.

        Raises:
            CapacityError: no node is alive.
            HttpError: a node refuses, for example the key.
        """
        answers, missing = await self._ask(place, headers)
        if place.nodes and has_to_begin_anew(place, answers):
            place = ReaderPlace()
            answers, missing = await self._ask(place, headers)
        if not answers:
            told = "; ".join(f"{name}: {why}" for name, why in missing.items())
            raise CapacityError(f"no node answers ({told}): try again")
        return merged(place, answers, missing, time.time())

    def enter(self) -> None:
        """Count one more reader of events.

        Raises:
            QuotaExceeded: there are too many.
        """
        if self.num_readers >= _MAX_READERS:
            raise QuotaExceeded(
                f"{_MAX_READERS} readers follow the programs through this router, the most that "
                "may: close one, or ask without 'Accept: text/event-stream'"
            )
        self.num_readers += 1

    def leave(self) -> None:
        self.num_readers -= 1

    async def _changes(self, scope: Scope) -> Response:
        headers = Headers(scope=scope)
        query = QueryParams(scope["query_string"])
        check_query(query, ("since",))
        since = query.get("since", "")
        access = [pair for pair in scope["headers"] if pair[0] in _ACCESS]
        if "text/event-stream" not in headers.get("accept", "").lower():
            body = await self.look(read_place(since), access)
            return Response(msgspec.json.encode(body), media_type="application/json")
        place = read_place(headers.get("last-event-id") or since)
        first = await self.look(place, access)  # a refusal is an answer with its status
        return _OverviewStream(self, first, access, self._write_timeout_s)

    async def _ask(
        self, place: ReaderPlace, headers: RawHeaders
    ) -> tuple[dict[str, Row], dict[str, str]]:
        """Return the answers of the nodes, and for each node without one the reason."""
        engines = self._fleet.engines
        found = await asyncio.gather(
            *(self._ask_one(engine, place.since(engine.name), headers) for engine in engines)
        )
        answers, missing = {}, {}
        for engine, told in zip(engines, found, strict=True):
            if isinstance(told, str):
                missing[engine.name] = told
            else:
                answers[engine.name] = told
        return answers, missing

    async def _ask_one(self, engine: NodeEngine, since: str, headers: RawHeaders) -> Row | str:
        node = engine.node
        if node.liveness.is_gone:
            return f"it {node.liveness.absence}"
        target = f"{_LIVE}?since={quote(since, safe='')}" if since else _LIVE
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                with await node.ask("GET", target, headers) as exchange:
                    status = (await exchange.head()).status
                    body = await exchange.read_all(_MAX_BYTES)
        except TimeoutError:
            return f"no answer within {_TIMEOUT_S:g} s"
        except EngineLost as exc:
            return exc.message
        try:
            told = msgspec.json.decode(body, type=Row)
        except UNREADABLE:
            return f"status {status}, and no JSON"
        if status in (401, 403):
            error = told.get("error")
            error = error if isinstance(error, dict) else {}
            raise HttpError(status, str(error.get("message")), code=error.get("code"))
        if status != 200:
            return f"status {status}"
        if not is_told(told):
            return "its answer lacks what this release reads: run one release on all nodes"
        gone = self._elsewhere(engine.name)
        return {**told, "programs": [row for row in told["programs"] if row["id"] not in gone]}

    def _file(self, scope: Scope) -> Response:
        name = scope["path"].removeprefix(PAGE_PATH).removeprefix("/") or "index.html"
        found = self._page.get(name)
        if found is None:
            raise HttpError(
                404, f"the page {PAGE_PATH} has no file {name[:100]!r}", code="not_found"
            )
        if Headers(scope=scope).get("if-none-match") == found.etag:
            return Response(status_code=304, headers=dict(found.headers))
        return Response(found.body, headers=dict(found.headers), media_type=found.media_type)


class _OverviewStream(EventStream):
    """An event stream of ``first``, then of the changes after it."""

    def __init__(
        self, overview: Overview, first: Row, headers: RawHeaders, write_timeout_s: float
    ) -> None:
        super().__init__(write_timeout_s)
        self._overview = overview
        self._first = first
        self._access = headers

    def opened(self) -> None:
        self._overview.enter()

    def closed(self) -> None:
        self._overview.leave()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield events until a node refuses or no node answers; the reader then asks again and
        receives the reason."""
        loop = asyncio.get_running_loop()
        told, standing = self._first, None
        spoke_s = loop.time()
        while True:
            now = (told["engines"], told["node"]["ready"], told["node"]["detail"])
            if told["programs"] or told["ended"] or told["whole"] or now != standing:
                yield f"id: {told['next']}\n".encode() + data_event(msgspec.json.encode(told))
                standing, spoke_s = now, loop.time()
            elif loop.time() - spoke_s >= HEARTBEAT_S:
                yield HEARTBEAT
                spoke_s = loop.time()
            if not told["more"]:
                await asyncio.sleep(_INTERVAL_S)
            try:
                told = await self._overview.look(read_place(told["next"]), self._access)
            except (QuireError, HttpError):
                break
        yield DATA_EVENTS.done


def _names_a_node(scope: Scope) -> bool:
    return any(name == NODE_HEADER for name, _ in scope["headers"])
