"""Requests that concern every node: lists, joined from the lists of all nodes, and commands for all
nodes.

Owns how many answers become one. Must not know which node has a single thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import UNREADABLE, CapacityError, EngineFault, EngineLost
from quire.server.errors.errors import HttpError
from quire.server.list_page import ListPage
from quire.server.requests.query_names import check_query_names

_SESSIONS = "/v1/sessions"
_TIMEOUT_S = 30.0
_MAX_BYTES = 16 << 20
_PAGE = 100
_MAX_ITEMS = 2000
"""The most items that are read of one node's list, the newest first."""

_OF_NODES = ("/v1/programs", "/v1/sessions")
"""Lists whose items name their node."""

_MODELS = "/v1/models"

_DEFAULT_LIMIT = 20
_TIMES = ("created_at", "created", "started_at")


class _Listed(msgspec.Struct):
    """The fields of a node's list that are read."""

    data: list[dict[str, Any]] = []
    has_more: bool = False
    last_id: str | None = None


class BodyAnswer:
    """Implements ``RoutedAnswer`` for a body that the router has made, or has read already."""

    def __init__(self, engine: str, head: AnswerHead) -> None:
        self.engine = engine
        self.head = head

    async def read(self) -> bytes:
        return b""

    def pass_to(self, sink: Sink) -> None:
        """Do nothing: there are no pieces."""

    def close(self) -> None:
        """Do nothing: no exchange is under way."""


class AllEngines:
    """All engines of ``fleet``. ``elsewhere``: gives, for the name of a node, the programs that the
    node still lists and another one has."""

    def __init__(
        self, fleet: Fleet, elsewhere: Callable[[str], Collection[str]] = lambda name: ()
    ) -> None:
        self._fleet = fleet
        self._elsewhere = elsewhere

    async def told(self, request: Request) -> OpenedAnswer:
        """Send ``request`` to every living node. Return the first refusal; if no node refuses, the
        first answer. To delete what only some nodes have is no error.

        Raises:
            CapacityError: no node is alive.
            EngineLost: a node does not answer; others may have done what was asked.
        """
        answers = await asyncio.gather(
            *(self._whole(engine, request, request.target) for engine in self._living())
        )
        done = [one for one in answers if one.answer.head.status < 400]
        refused = [one for one in answers if one.answer.head.status >= 400]
        if done and request.method == "DELETE":
            refused = [one for one in refused if one.answer.head.status != 404]
        return (refused or done)[0]

    async def listed(self, request: Request, *, is_paged: bool) -> OpenedAnswer:
        """Return the lists of all living nodes as one: each thing once, the newest first. If a node
        refuses (for example the key), return its refusal.

        Raises:
            CapacityError: no node is alive.
            HttpError: 400; no item has the id ``after``, or ``limit`` is not from 1 to 100, or
                Quire's own path has a parameter that it does not know, or one twice.
        """
        sent = parse_qsl(request.target.partition("?")[2], keep_blank_values=True)
        if request.path == _SESSIONS:
            check_query_names([name for name, _ in sent], ("after", "limit"))
        query = dict(sent)
        after, limit = None, _DEFAULT_LIMIT
        if is_paged:
            after, limit = query.pop("after", None), _limit(query.pop("limit", None))
        gathered = await asyncio.gather(
            *(self._all_of(engine, request, query, is_paged) for engine in self._living())
        )
        refusal = _refusal(request, gathered)
        if refusal is not None:
            return refusal
        items = _each_once(gathered)
        if not is_paged:
            return made({"object": "list", "data": items})
        items.sort(key=_time_of, reverse=True)
        if query.get("order") == "asc":
            items.reverse()
        page = ListPage(items, _id_of, after, limit)
        return made(
            {
                "object": "list",
                "data": page.items,
                "first_id": page.first_id,
                "last_id": page.last_id,
                "has_more": page.has_more,
            }
        )

    async def _all_of(
        self, engine: NodeEngine, request: Request, query: Mapping[str, str], is_paged: bool
    ) -> list[Any] | OpenedAnswer:
        items: list[Any] = []
        after: str | None = None
        while len(items) < _MAX_ITEMS:
            asked = dict(query)
            if is_paged:
                asked |= {"limit": str(_PAGE)} | ({"after": after} if after else {})
            target = f"{request.path}?{urlencode(asked)}" if asked else request.path
            opened = await self._whole(engine, request, target)
            if opened.answer.head.status != 200:
                return opened
            try:
                listed = msgspec.json.decode(opened.first, type=_Listed)
            except UNREADABLE as exc:
                raise EngineFault(
                    f"{request.path} at {engine.name} answers with what it should not: {exc}"
                ) from exc
            found = listed.data
            if request.path in _OF_NODES:
                gone = self._elsewhere(engine.name)
                found = [
                    {**item, "node": engine.name} for item in found if item.get("id") not in gone
                ]
            items += found
            before, after = after, listed.last_id
            if not (is_paged and listed.has_more and after) or after == before:
                break
        return items

    async def _whole(self, engine: NodeEngine, request: Request, target: str) -> OpenedAnswer:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                asked = engine.node.ask(
                    request.method, target, request.headers, request.body, may_repeat=False
                )
                with await asked as exchange:
                    head = await exchange.head()
                    body = await exchange.read_all(_MAX_BYTES)
        except TimeoutError as exc:
            raise EngineLost(f"node {engine.name} has not answered in {_TIMEOUT_S:g} s") from exc
        return OpenedAnswer(BodyAnswer(engine.name, head), body, is_whole=True)

    def _living(self) -> list[NodeEngine]:
        living = [engine for engine in self._fleet.engines if not engine.node.liveness.is_gone]
        if not living:
            raise CapacityError("no node is alive: try again")
        return living


def made(body: Mapping[str, Any]) -> OpenedAnswer:
    """Return an answer of the router itself, with ``body`` as JSON."""
    encoded = msgspec.json.encode(body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(encoded)).encode()),
    ]
    return OpenedAnswer(BodyAnswer("", AnswerHead(200, headers)), encoded, is_whole=True)


def _refusal(request: Request, gathered: Sequence[list[Any] | OpenedAnswer]) -> OpenedAnswer | None:
    """Return the refusal among the answers of all nodes. A node that loads its first model has no
    models to list: its refusal counts only if all nodes refuse."""
    refused = [found for found in gathered if isinstance(found, OpenedAnswer)]
    if request.path == _MODELS and len(refused) < len(gathered):
        refused = [one for one in refused if one.answer.head.status != 503]
    return refused[0] if refused else None


def _each_once(gathered: Iterable[list[Any] | OpenedAnswer]) -> list[Any]:
    """Return the items of all lists; of those with the same id the first."""
    items: dict[tuple[str, str], Any] = {}
    for found in gathered:
        for item in found if isinstance(found, list) else ():
            items.setdefault(_id_at(item), item)
    return list(items.values())


def _limit(text: str | None) -> int:
    if text is None:
        return _DEFAULT_LIMIT
    if not (text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= _PAGE):
        raise HttpError(400, f"limit: must be 1 to {_PAGE}", code="invalid_argument", param="limit")
    return int(text)


def _id_of(item: Any) -> str:
    return str(item.get("id")) if isinstance(item, dict) else ""


def _id_at(item: Any) -> tuple[str, str]:
    """Return the item's id and its node: two nodes may have sessions with the same id."""
    return _id_of(item), str(item.get("node", "")) if isinstance(item, dict) else ""


def _time_of(item: Any) -> float:
    times = [item[name] for name in _TIMES if isinstance(item.get(name), (int, float))]
    return float(times[0]) if times else 0.0
