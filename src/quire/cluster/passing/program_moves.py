"""Restartable programs of a drained node move to other nodes, with their children.

Owns the order of the steps: the program's pages are sent ahead while it runs, it stops at its node,
another node takes its record, and the first node is notified. If a step fails, one of the two nodes
has the program. Must not know the content of a record.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec

from quire.cluster.engines.fleet import Fleet
from quire.cluster.engines.node_engine import ClusterKey, NodeEngine
from quire.cluster.engines.pages_ahead import PromptPrefix, send_ahead
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.pool import NotReached
from quire.cluster.requests.locating import Locator
from quire.cluster.requests.places import program_lookups
from quire.cluster.requests.request import RawHeaders
from quire.core.errors import UNREADABLE, EngineLost

logger = logging.getLogger(__name__)

_PROGRAMS = "/v1/microserving/programs"
_MAX_BYTES = 64 << 20
_CALL_S = 30.0
_PAGES_S = 60.0
_AGAIN_S = 20.0
"""How long a node that has not answered is asked whether it has taken a program. With the first
call it is less than the program's own node waits for a report."""
_RETRY_S = 0.5
_MAX_TURNS = 2
"""How often pages are sent while the program runs."""
_MAX_AT_ONCE = 8
_SESSION = "session"
_RUNS = ("starting", "running")


class _HeldTexts(msgspec.Struct):
    texts: list[PromptPrefix]


class _Row(msgspec.Struct):
    """The fields of a program's or a session's record that are read."""

    id: str
    state: str
    object: str = ""
    form: str = ""
    parent: str | None = None


class _Rows(msgspec.Struct):
    data: list[_Row]


@dataclass(slots=True)
class ProgramsLeft:
    """The outcome for the programs of one node: ``num_moved`` have moved, and K and V of
    ``num_tokens_sent`` tokens need not be computed again; ``stay`` gives, by id, the reason why
    each of the others stays."""

    num_moved: int = 0
    num_tokens_sent: int = 0
    stay: dict[str, str] = field(default_factory=dict)


class ProgramMoves:
    """Moves programs between the nodes of ``fleet``. Without the cluster key no program moves."""

    def __init__(self, fleet: Fleet, cluster_key: ClusterKey, locator: Locator) -> None:
        self._fleet = fleet
        self._locator = locator
        self._headers = [
            *((name.encode(), value.encode()) for name, value in cluster_key.headers().items()),
            (b"content-type", b"application/json"),
        ]
        self._has_key = cluster_key.key is not None

    async def empty(self, engine: NodeEngine) -> ProgramsLeft:
        """Move the programs at ``engine`` that can move, each to the node with the lowest load."""
        left = ProgramsLeft()
        if not (self._has_key and engine.node.liveness.is_alive):
            return left
        limit = asyncio.Semaphore(_MAX_AT_ONCE)

        async def move(family: list[str]) -> None:
            async with limit:
                why = await self._move(family, engine, left)
            if why is None:
                left.num_moved += len(family)
                return
            program, *descendants = family
            left.stay[program] = why
            left.stay.update(dict.fromkeys(descendants, f"it moves with {program}, which stays"))
            logger.info("program %s stays at %s: %s", program, engine.name, why)

        try:
            families = await self._families(engine.node)
        except (EngineLost, TimeoutError, *UNREADABLE) as exc:
            logger.warning("the programs of %s cannot be asked for: %s", engine.name, exc)
            return left
        await asyncio.gather(*map(move, families))
        return left

    async def _families(self, node: RoutedNode) -> list[list[str]]:
        """Return the running programs of ``node`` as families: each program is followed by its
        descendants. A session is no program that moves: its requests end or move by themselves."""
        status, body = await self._call(node, "GET", "/v1/programs")
        if status != 200:
            logger.warning(
                "node %s does not tell its programs (%d), so none is moved: a node with keys needs "
                "the router's --node-key-file",
                node.name,
                status,
            )
            return []
        families: dict[str, list[str]] = {}
        for one in msgspec.json.decode(body, type=_Rows).data:  # in the order of their launch
            is_program = one.object == "program" and one.form != _SESSION
            if one.state in _RUNS and is_program:
                family = families.get(one.parent or "", [])
                family.append(one.id)
                families[one.id] = family
        return list({id(family): family for family in families.values()}.values())

    async def _move(self, family: list[str], source: NodeEngine, left: ProgramsLeft) -> str | None:
        """Move a program with its descendants; return why it stays, or None if it has moved."""
        path = f"{_PROGRAMS}/{quote(family[0], safe='')}"
        targets = sorted(
            (
                one
                for one in self._fleet.engines
                if one is not source and one.node.takes_work_for(None)
            ),
            key=lambda one: one.load,
        )
        if not targets:
            return "no other node takes work"
        try:
            left.num_tokens_sent += await self._send_pages(path, source, targets[0])
            status, record = await self._call(source.node, "POST", f"{path}/hand_over")
            if status != 200:
                return _message(record)
            why = await self._taken(record, targets)
            told = msgspec.json.encode({"is_taken": why is None})
            await self._call(source.node, "POST", f"{path}/handed_over", told)
        except (EngineLost, TimeoutError) as exc:
            return str(exc) or "the node does not answer"
        finally:
            for program in family:
                self._locator.forget(program_lookups(quote(program, safe="")))
        return why

    async def _send_pages(self, path: str, source: NodeEngine, target: NodeEngine) -> int:
        """Send the program's pages, then what it has computed meanwhile; return how many tokens
        have arrived."""
        num_sent, told = 0, b""
        for _ in range(_MAX_TURNS):
            status, body = await self._call(source.node, "GET", f"{path}/texts")
            if status != 200 or body == told:  # ``hand_over`` says why it stays
                break
            told = body
            try:
                texts = msgspec.json.decode(body, type=_HeldTexts).texts
            except UNREADABLE as exc:
                logger.warning("%s at %s cannot be read: %s", path, source.name, exc)
                break
            num_sent += await send_ahead(texts, source, target, _PAGES_S)
        return num_sent

    async def _taken(self, record: bytes, targets: list[NodeEngine]) -> str | None:
        """Offer a program to ``targets``; return why none takes it, or None if one has.

        Raises:
            EngineLost: one may have taken it, and does not say so.
        """
        why = ""
        for target in targets:
            try:
                status, body = await self._offered(target.node, record)
            except NotReached as exc:
                why = exc.message
                continue
            if status == HTTPStatus.CREATED:
                return None
            why = _message(body)
        return why

    async def _offered(self, node: RoutedNode, record: bytes) -> tuple[int, bytes]:
        """Offer a program to ``node`` and return its answer. A node that has not answered may have
        taken it, and then no other one may: it is asked until it says so.

        Raises:
            NotReached: it has not received the program, or has ended since.
            EngineLost: it does not say whether it has taken it.
        """
        try:
            return await self._call(node, "POST", _PROGRAMS, record)
        except NotReached:
            raise
        except (EngineLost, TimeoutError) as exc:
            logger.warning("node %s is asked again whether it has a program: %s", node.name, exc)
        try:
            async with asyncio.timeout(_AGAIN_S):
                return await self._answer_at_last(node, record)
        except TimeoutError as exc:
            raise EngineLost(
                f"node {node.name} may have taken it, and does not answer: it ends where it was"
            ) from exc

    async def _answer_at_last(self, node: RoutedNode, record: bytes) -> tuple[int, bytes]:
        while True:
            await asyncio.sleep(_RETRY_S)
            try:
                status, body = await self._call(node, "POST", _PROGRAMS, record)
            except (EngineLost, TimeoutError) as exc:
                if isinstance(exc.__cause__, ConnectionRefusedError):
                    raise  # its process is gone, and with it what it had taken
                continue
            is_there = status == HTTPStatus.CONFLICT  # since the call before
            return HTTPStatus.CREATED if is_there else status, body

    async def _call(
        self, node: RoutedNode, method: str, path: str, body: bytes = b""
    ) -> tuple[int, bytes]:
        headers: RawHeaders = self._headers
        async with asyncio.timeout(_CALL_S):
            with await node.ask(method, path, headers, body, may_repeat=False) as exchange:
                head = await exchange.head()
                return head.status, await exchange.read_all(_MAX_BYTES)


def _message(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer, type=dict[str, Any])["error"]["message"])
    except (*UNREADABLE, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
