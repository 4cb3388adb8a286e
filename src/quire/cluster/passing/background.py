"""Responses in the background, whose clients have nothing but an id. When the node of one is lost,
another node begins it again under the same id; one that no node can begin again is reported as
failed.

Owns what is kept of a response: the request, and the answer that its client has received, until the
client has seen the end. Must not know how a node is chosen.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from quire.cluster.nodes.node import RoutedNode
from quire.cluster.passing.everywhere import made
from quire.cluster.passing.opened import OpenedAnswer, open_answer
from quire.cluster.passing.retelling import begun_again
from quire.cluster.requests.places import HoldingNode, place_of
from quire.cluster.requests.request import RawHeaders, Request
from quire.core.errors import UNREADABLE, CapacityError, EngineLost, QuireError

logger = logging.getLogger(__name__)

_PATH = "/v1/responses"
_ONE = re.compile(rf"{_PATH}/([^/?]+)(/cancel)?")
_RUNNING = ("queued", "in_progress")
_ACCESS = (b"authorization", b"x-api-key")
_MAX_KEPT = 4096
_MAX_BYTES = 64 << 20

Open = Callable[[Request], Awaitable[OpenedAnswer]]
"""Sends a request to an engine that takes it; raises ``QuireError`` if none does."""


@dataclass(slots=True, eq=False)
class _Begun:
    """A response that a node has begun. ``shown``: the answer that its client has received.
    ``request``: the request with which it can be begun again; None: it cannot, for the reason
    ``why``. ``node``: the name of its node. ``is_lost``: no node has it now. ``beginning``: a node
    is being asked to begin it again. ``is_unwanted``: its client has cancelled or deleted it while
    no node had it. ``failure``: why it has failed for good."""

    id: str
    node: str
    access: RawHeaders
    shown: dict[str, Any]
    request: Request | None
    why: str
    is_lost: bool = False
    beginning: asyncio.Task[None] | None = None
    is_unwanted: bool = False
    failure: str | None = None


class BackgroundResponses:
    """The background responses of one router. ``cluster_key``: without it none is begun again.
    Belongs to one loop."""

    def __init__(self, open: Open, cluster_key: str | None) -> None:
        self._open = open
        self._cluster_key = cluster_key
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        self._num_bytes = 0
        """Bytes of the requests that are kept."""
        self._left: dict[str, deque[_Begun]] = {}
        """The responses that went on elsewhere and that a node may still have, by the node's
        name."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def known(self, request: Request) -> OpenedAnswer | None:
        """Return the answer to a request about a response that no node has now; else None."""
        found = _ONE.fullmatch(request.path)
        begun = None if found is None else self._begun.get(found[1])
        if found is None or begun is None or begun.access != _access_of(request):
            return None
        is_delete = request.method == "DELETE"
        is_end = is_delete or found[2] is not None
        if is_end and begun.beginning is not None:
            await asyncio.wait([begun.beginning])  # the node that has begun it is then asked
        if is_delete:
            self._forget(begun.id)
        if not begun.is_lost or (is_delete and begun.failure is not None):
            return None  # a node may have it
        if is_end and begun.failure is None:
            begun.is_unwanted = True
        if is_delete:
            return made({"id": begun.id, "object": "response", "deleted": True})
        return made({**begun.shown, **self._gone_on(begun)})

    def _gone_on(self, begun: _Begun) -> dict[str, Any]:
        """Return what is told of a lost response. One that may still succeed is begun again."""
        if begun.is_unwanted:
            return {"status": "cancelled"}
        if begun.failure is None:
            self._begin(begun)
            return {"status": "queued"}
        return {"status": "failed", "error": {"code": EngineLost.code, "message": begun.failure}}

    async def noted(self, request: Request, opened: OpenedAnswer) -> OpenedAnswer:
        """Keep what ``opened``, the answer of a node to ``request``, says of a background response;
        return the answer.

        Raises:
            EngineLost: the answer breaks off.
        """
        found = _ONE.fullmatch(request.path)
        is_known = found is not None and found[1] in self._begun
        is_ok = opened.answer.head.status == HTTPStatus.OK
        if not is_ok or not (is_known or _is_in_background(request)):
            return opened
        if not opened.first:
            opened = await open_answer(opened.answer)
        if found is None:
            self._note_begun(request, opened)
        elif opened.is_whole:
            self._note_status(found[1], opened.first)
        return opened

    def changed(self, node: RoutedNode) -> None:
        """Note that the state of ``node`` has changed."""
        if node.liveness.is_gone:
            for begun in self._begun.values():
                if self._is_at(begun, node):
                    self._lose(begun, node, "was lost")
        elif node.liveness.is_alive:
            for begun in self._left.pop(node.name, ()):
                self._do(self._end_at(node, begun))
            for begun in self._begun.values():
                if begun.is_lost and begun.failure is None:
                    self._begin(begun)

    def removed(self, node: RoutedNode) -> None:
        """Note that the router has ``node`` no more; it may still run."""
        for begun in self._begun.values():
            if self._is_at(begun, node):
                self._lose(begun, node, "was removed from the router")
        for begun in self._left.pop(node.name, ()):
            self._do(self._end_at(node, begun, is_removed=True))

    def _is_at(self, begun: _Begun, node: RoutedNode) -> bool:
        return begun.node == node.name and not begun.is_lost and begun.failure is None

    def _note_begun(self, request: Request, opened: OpenedAnswer) -> None:
        streams = opened.is_events
        shown: dict[str, Any] = {}
        if streams:
            shown = _first_response(opened.first)
        elif opened.is_whole:
            shown = _object_in(opened.first)
        id = shown.get("id")
        if not isinstance(id, str):
            return
        why = _why_not(request, streams=streams, has_key=self._cluster_key is not None)
        if why is None and self._num_bytes + len(request.body) > _MAX_BYTES:
            why = f"the router keeps {_MAX_BYTES >> 20} MiB of such requests"
        kept = request if why is None else None
        self._begun[id] = _Begun(
            id, opened.answer.engine, _access_of(request), shown, kept, why or ""
        )
        self._num_bytes += 0 if kept is None else len(kept.body)
        if len(self._begun) > _MAX_KEPT:
            self._forget(next(iter(self._begun)))

    def _forget(self, id: str) -> None:
        """Keep nothing of the response but what ends it at a node that it has left."""
        begun = self._begun.pop(id, None)
        if begun is not None and begun.request is not None:
            self._num_bytes -= len(begun.request.body)
            begun.request = None

    def _note_status(self, id: str, answer: bytes) -> None:
        status = _object_in(answer).get("status")
        if status is not None and status not in _RUNNING:
            self._forget(id)  # its client knows the end

    def _lose(self, begun: _Begun, node: RoutedNode, how: str) -> None:
        begun.is_lost = True
        lost = f"its node {node.name} {how}"
        if begun.request is None:
            self._fail(begun, f"{lost}, and no other one can begin it again: {begun.why}")
            return
        logger.warning("response %s in the background begins again: %s", begun.id, lost)
        self._note_left(node, begun)
        self._begin(begun)

    def _begin(self, begun: _Begun) -> None:
        if begun.request is not None and begun.beginning is None and not begun.is_unwanted:
            begun.beginning = self._do(self._begin_again(begun, begun.request))

    async def _begin_again(self, begun: _Begun, request: Request) -> None:
        assert self._cluster_key is not None
        created = int(begun.shown.get("created_at", 0))
        key = begun.id.removeprefix("resp_")
        again = begun_again(request, self._cluster_key, key, created)
        try:
            opened = await self._open(again)
            status = opened.answer.head.status
            if status == HTTPStatus.OK:
                begun.node, begun.is_lost = opened.answer.engine, False
                logger.warning("response %s begins again at %s", begun.id, begun.node)
            elif status != HTTPStatus.SERVICE_UNAVAILABLE:
                why = opened.first[:500].decode(errors="replace")
                self._fail(begun, f"node {opened.answer.engine} does not begin it again: {why}")
        except (CapacityError, EngineLost) as exc:
            logger.info("response %s waits for a node: %s", begun.id, exc.message)
        except QuireError as exc:
            self._fail(begun, exc.message)
        finally:
            begun.beginning = None
            again.work.end()

    async def _end_at(self, node: RoutedNode, begun: _Begun, *, is_removed: bool = False) -> None:
        """Delete the response at a node that was taken for lost or that is removed: another node
        has it now, or its client does not want it."""
        if begun.node == node.name and not (begun.is_unwanted or is_removed):
            return  # it has come back
        try:
            target = f"{_PATH}/{begun.id}"
            with await node.ask("DELETE", target, begun.access) as exchange:
                await exchange.head()
        except EngineLost:
            self._note_left(node, begun)

    def _note_left(self, node: RoutedNode, begun: _Begun) -> None:
        self._left.setdefault(node.name, deque(maxlen=_MAX_KEPT)).append(begun)

    def _fail(self, begun: _Begun, why: str) -> None:
        begun.failure = f"response {begun.id} was lost: {why}"
        logger.warning("%s", begun.failure)

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_in_background(request: Request) -> bool:
    is_response = request.path == _PATH and request.method == "POST"
    return is_response and request.fields.get("background") is True


def _first_response(events: bytes) -> dict[str, Any]:
    """Return the response in the first event of its stream that has data; empty if it has none."""
    for line in events.split(b"\n"):
        if line.startswith(b"data: {"):
            found = _object_in(line[6:]).get("response")
            return found if isinstance(found, dict) else {}
    return {}


def _object_in(answer: bytes) -> dict[str, Any]:
    """Return the JSON object that a node has sent; empty if it cannot be read."""
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except UNREADABLE:
        return {}


def _why_not(request: Request, *, streams: bool, has_key: bool) -> str | None:
    """Return why another node could not begin the response again; None: it could."""
    fields: Mapping[str, Any] = request.fields
    if not has_key:
        return "the router has no --resume, or no cluster key"
    if streams:
        return "its events were told while it ran, and another run may say something else"
    if isinstance(place_of(request), HoldingNode) or fields.get("conversation"):
        return "it refers to what its node alone had"
    return None


def _access_of(request: Request) -> RawHeaders:
    return [pair for pair in request.headers if pair[0] in _ACCESS]
