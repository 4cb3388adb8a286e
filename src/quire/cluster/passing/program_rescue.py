"""Restartable programs of a lost node go on at another node, from the records that the lost node
has sent.

Owns when that happens, which node takes a program, and which programs are lost, and why. Must not
know the content of a record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TypeVar

import msgspec

from quire.cluster.engines.node_engine import ClusterKey, NodeEngine
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.record_reader import HeldRecord, NotTold, RecordReader, message_of
from quire.cluster.requests.locating import Locator
from quire.cluster.requests.places import program_lookups
from quire.cluster.requests.request import RawHeaders
from quire.core.errors import UNREADABLE, EngineLost, UnknownHandle

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TAKE = "/v1/microserving/programs/lost"
_CALL_S = 30.0
_RETRY_S = 0.25
_REFUSED_S = 2.0
_FIND_S = 60.0
_OTHERS_S = 10.0
_MAX_BYTES = 1 << 20
_MAX_AT_ONCE = 8
_MAX_KNOWN = 4096
"""How many rescued and how many lost programs the router remembers."""

_TAKEN = (HTTPStatus.CREATED, HTTPStatus.CONFLICT)
"""Answers of a node that has the program; CONFLICT: it had the program already."""

_NEVER = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)


class ProgramRescue:
    """Moves the programs of lost nodes to one of ``engines()``. Belongs to one loop."""

    def __init__(
        self,
        engines: Callable[[], Sequence[NodeEngine]],
        cluster_key: ClusterKey,
        locator: Locator,
    ) -> None:
        self._engines = engines
        self._locator = locator
        self._headers: RawHeaders = [
            *((name.encode(), value.encode()) for name, value in cluster_key.headers().items()),
            (b"content-type", b"application/msgpack"),
        ]
        self._readers: set[RecordReader] = set()
        self._lost: OrderedDict[str, str] = OrderedDict()
        """The programs that cannot go on at any node, by their first lookup, each with the
        reason."""
        self._rescued: OrderedDict[str, None] = OrderedDict()
        """The programs that a node has taken, by their first lookup; the node may not have sent
        their records yet."""
        self._changed = asyncio.Event()
        """Set when a program was rescued or lost; a new event then replaces it."""
        self.num_rescued = 0
        self.num_lost = 0

    async def keep(self, reader: RecordReader, suspect: Callable[[], None]) -> None:
        """Keep the records of a node, and rescue its programs once it is lost; runs until
        cancelled. ``suspect`` has the node probed now."""
        self._readers.add(reader)
        liveness = reader.node.liveness
        try:
            while True:
                retry_s = await self._read(reader, suspect)
                is_told = retry_s == 0.0
                if not is_told and liveness.is_gone:
                    reader.lose()
                if reader.orphans:
                    await self._rescue(reader)
                if reader.orphans:
                    retry_s = _RETRY_S
                if retry_s:
                    await asyncio.sleep(retry_s)
        finally:
            self._readers.discard(reader)

    @property
    def readers(self) -> list[RecordReader]:
        """The readers of the nodes whose records are kept."""
        return sorted(self._readers, key=lambda reader: reader.node.name)

    async def find(self, lookups: Sequence[str], headers: RawHeaders) -> RoutedNode | None:
        """Return the node that has a program which has moved or whose node was lost. Waits until a
        node has it, or until it is known that none will.

        Raises:
            EngineLost: no node has it, and not every node could be asked.
            UnknownHandle: it is lost.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self.check(lookups)
        while True:
            self._locator.forget(lookups)
            lost: EngineLost | None = None
            node = None
            try:
                node = await self._locator.find(lookups, headers)
            except EngineLost as exc:
                lost = exc
            if node is not None:
                return node
            self.check(lookups)  # it may have been found to be lost while the nodes were asked
            if loop.time() - begun_s >= self._patience_s(lookups):
                if lost is not None:
                    raise lost
                return None
            await self._changes()

    def outdated(self, lookup: str) -> set[str]:
        """Return the names of nodes that were taken for lost, and do not know yet that the program
        under this path goes on elsewhere. They end theirs when they learn it."""
        id = _program_at(lookup)
        return {reader.node.name for reader in self._readers if id in reader.gone}

    def elsewhere(self, node: str) -> frozenset[str]:
        """Return the programs of the node of this name that go on at another node. The node does
        not know it yet and may still list them."""
        return frozenset(
            id for reader in self._readers if reader.node.name == node for id in reader.gone
        )

    def check(self, lookups: Sequence[str]) -> None:
        """Raise ``UnknownHandle`` if the program is lost."""
        why = self._lost.get(lookups[0])
        if why is not None:
            raise UnknownHandle(why)

    def _patience_s(self, lookups: Sequence[str]) -> float:
        """Return for how long a node may still take the program: it may while this router has the
        record or has given it to a node, or while another router may have it."""
        id = _program_at(lookups[0])
        if lookups[0] in self._rescued or any(reader.has(id) for reader in self._readers):
            return _FIND_S
        return 0.0 if all(reader.is_told for reader in self._readers) else _OTHERS_S

    async def _changes(self) -> None:
        """Wait until a program was rescued or lost, but no longer than ``_RETRY_S``: another router
        may have rescued one."""
        try:
            async with asyncio.timeout(_RETRY_S):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _read(self, reader: RecordReader, suspect: Callable[[], None]) -> float:
        """Read the records once; return after how many seconds to read again."""
        try:
            await reader.read()
        except NotTold as exc:
            reader.complaints.tell(exc.message)
            return _REFUSED_S
        except (EngineLost, TimeoutError, *UNREADABLE) as exc:
            reader.complaints.tell(str(exc) or "it does not answer")
            suspect()
            return _RETRY_S
        return 0.0

    async def _rescue(self, reader: RecordReader) -> None:
        limit = asyncio.Semaphore(_MAX_AT_ONCE)

        async def rescue(id: str, record: HeldRecord) -> None:
            async with limit:
                await self._rescue_one(id, record, reader)

        await asyncio.gather(*(rescue(*one) for one in list(reader.orphans.items())))

    async def _rescue_one(self, id: str, record: HeldRecord, reader: RecordReader) -> None:
        why, name = record.stays, reader.node.name
        if why is None:
            target, why = await self._taken(id, record)
            if target is not None:
                self.num_rescued += 1
                logger.warning("program %s goes on at %s: node %s is lost", id, target, name)
                reader.let_go(id, is_elsewhere=True)
                for one in {id, *record.members}:
                    lookups = program_lookups(one)
                    _remember(self._rescued, lookups[0], None)
                    self._locator.forget(lookups)
                self._tell()
                return
        if why is None:
            return  # no node takes it now: it is offered again
        logger.warning("program %s is lost with its node %s: %s", id, name, why)
        self.num_lost += 1
        reader.let_go(id, is_elsewhere=False)
        lost = f"was lost with its node {name}"
        _remember(self._lost, program_lookups(id)[0], f"program {id} {lost}: {why}")
        for one in record.members:
            if one != id:
                said = f"program {one} {lost} and with {id}, to which it belongs: {why}"
                _remember(self._lost, program_lookups(one)[0], said)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _taken(self, id: str, record: HeldRecord) -> tuple[str | None, str | None]:
        """Offer the program to the nodes. Return the name of the node that has taken it, or why
        none ever will, or neither if it is to be offered again."""
        body = msgspec.msgpack.encode(record.parts)
        outdated = self.outdated(program_lookups(id)[0])
        targets = [
            one
            for one in self._engines()
            if one.node.takes_work_for(None) and one.name not in outdated
        ]
        why: str | None = None
        before = record.offered_to
        for target in sorted(targets, key=lambda one: (one.name != before, one.load)):
            record.offered_to = target.name
            try:
                status, answer = await self._offer(target.node, body)
            except (EngineLost, TimeoutError):
                return None, None  # it may have taken the program: the next time it is asked first
            if status in _TAKEN:
                return target.name, None
            said = message_of(answer)
            if said != record.refusal:  # logged once: the node is asked again and again
                record.refusal = said
                logger.warning("node %s takes no program of a lost node: %s", target.name, said)
            if status not in _NEVER:
                return None, None
            why = f"node {target.name} cannot go on with it: {said}"
        return None, why

    async def _offer(self, node: RoutedNode, body: bytes) -> tuple[int, bytes]:
        async with asyncio.timeout(_CALL_S):
            with await node.ask("POST", _TAKE, self._headers, body, may_repeat=False) as exchange:
                status = (await exchange.head()).status
                return status, await exchange.read_all(_MAX_BYTES)


def _program_at(lookup: str) -> str:
    return lookup.rpartition("/")[2]


def _remember(known: OrderedDict[str, T], lookup: str, what: T) -> None:
    known[lookup] = what
    if len(known) > _MAX_KNOWN:
        known.popitem(last=False)
