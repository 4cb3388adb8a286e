"""Reads the records of one node's programs, and keeps them for the case that the node is lost.

Owns the exchange of messages with the node, and which records are kept for how long. Must not know
the content of a record, nor where its program goes on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from quire.cluster.nodes.complaints import Complaints
from quire.cluster.nodes.node import RoutedNode
from quire.core.errors import UNREADABLE, EngineLost
from quire.core.record_parts import RecordsWanted, ToldPart, ToldRecords

logger = logging.getLogger(__name__)

SILENCE_S = 8.0
"""How long to wait for an answer; a node answers within two seconds."""

ENDED_KEPT_S = 10.0
"""How long the record of an ended program is kept: its clients may not know of the end yet. If its
node is lost in that time, the program runs again, at the cost of one that had not ended."""

MAX_KEPT_BYTES = 256 << 20
"""The most bytes of records that are kept of one node."""

_MAX_ANSWER_BYTES = 256 << 20
_MAX_GONE = 4096


class NotTold(EngineLost):
    """The node answers, but sends no records."""


@dataclass(slots=True)
class HeldRecord:
    """The record of one program with its descendants. ``members``: the ids of those that run, the
    program's own first. ``stays``: why they cannot go on elsewhere. ``ended_s``: when the program
    ended."""

    parts: list[bytes] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    num_bytes: int = 0
    stays: str | None = None
    ended_s: float | None = None
    offered_to: str | None = None
    """The node to which the record was last offered."""

    refusal: str = ""
    """The message of the last node that refused the record."""

    def take(self, told: ToldPart) -> None:
        if told.is_first:
            self.parts, self.num_bytes, self.stays = [], 0, None
        self.members = told.members
        self.stays = self.stays or told.stays
        if self.stays is None:
            self.parts.append(told.part)
            self.num_bytes += len(told.part)

    def give_up(self, why: str) -> None:
        self.parts, self.num_bytes, self.stays = [], 0, why


class RecordReader:
    """Reads the records of ``node``'s programs. ``reader``: the name by which nodes know this
    router."""

    def __init__(
        self,
        node: RoutedNode,
        cluster_headers: Mapping[str, str],
        reader: str,
        now_s: Callable[[], float],
        max_kept_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self.node = node
        self._reader = reader
        self._now_s = now_s
        self._max_kept_bytes = max_kept_bytes
        self._headers = [
            *((name.encode(), value.encode()) for name, value in cluster_headers.items()),
            (b"content-type", b"application/json"),
        ]
        self._feed, self._number = "", 0
        self.complaints = Complaints(f"node {node.name} tells no records of its programs")
        self._num_bytes = 0
        self.is_told = False
        """Whether the node sends its records to this router, or did so until it was lost."""
        self.kept: dict[str, HeldRecord] = {}
        """The records of programs that the node has, by the program's id."""
        self.orphans: dict[str, HeldRecord] = {}
        """The records of programs that no node has: their node is lost, or was started again."""
        self.gone: set[str] = set()
        """The ids of programs that go on elsewhere, and that this node may still have."""

    @property
    def num_kept(self) -> int:
        """Number of kept records whose programs could go on elsewhere."""
        return sum(record.stays is None for record in (*self.kept.values(), *self.orphans.values()))

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def has(self, id: str) -> bool:
        """Return whether the record of the program ``id`` is kept here, by itself or in that of an
        ancestor."""
        return any(
            id == held or id in record.members
            for records in (self.kept, self.orphans)
            for held, record in records.items()
        )

    async def read(self) -> None:
        """Ask the node once, and take its answer.

        Raises:
            EngineLost: the node cannot be asked.
            NotTold: it refuses to send records.
            TimeoutError: it does not answer.
            msgspec.MsgspecError, UnicodeDecodeError, RecursionError: its answer cannot be read.
        """
        gone = list(self.gone)[:_MAX_GONE]
        asked = RecordsWanted(self._reader, self._feed, self._number, gone)
        async with asyncio.timeout(SILENCE_S):
            with await self.node.ask(
                "POST",
                "/v1/microserving/records",
                self._headers,
                msgspec.json.encode(asked),  # a node that is asked twice begins anew
            ) as exchange:
                status = (await exchange.head()).status
                body = await exchange.read_all(_MAX_ANSWER_BYTES)
        self.is_told = status == HTTPStatus.OK
        if not self.is_told:
            raise NotTold(f"/v1/microserving/records is {status}: {message_of(body)}")
        self.complaints.settle()
        self._take(msgspec.msgpack.decode(body, type=ToldRecords))
        self.gone.difference_update(gone)

    def lose(self) -> None:
        """Make orphans of all kept records: the node is lost."""
        self.orphans |= self.kept
        self.kept = {}

    def let_go(self, id: str, *, is_elsewhere: bool) -> None:
        """Drop an orphan: its program goes on elsewhere, or nowhere."""
        record = self.orphans.pop(id)
        self._num_bytes -= record.num_bytes
        if is_elsewhere:
            self.gone.update((id, *record.members))

    def _take(self, told: ToldRecords) -> None:
        if told.feed == self._feed:  # the same feed: the node was not lost
            self.kept, self.orphans = self.orphans | self.kept, {}
        elif self._feed:
            self.lose()  # the node is another process now
        self._feed, self._number = told.feed, told.number
        for part in told.parts:
            self._keep(part)
        for ended in told.ended:
            if ended.may_be_lost:
                self._forget(ended.id)
            elif ended.id in self.kept:
                self.kept[ended.id].ended_s = self._now_s()
        self._forget_old()

    def _keep(self, part: ToldPart) -> None:
        record = self.kept.setdefault(part.id, HeldRecord())
        self._num_bytes -= record.num_bytes
        record.take(part)
        self._num_bytes += record.num_bytes
        if self._num_bytes > self._max_kept_bytes:
            self._give_up(part.id, record)

    def _forget_old(self) -> None:
        """Forget programs that have ended, after a while."""
        until_s = self._now_s() - ENDED_KEPT_S
        for id, record in list(self.kept.items()):
            if record.ended_s is not None and record.ended_s < until_s:
                self._forget(id)

    def _give_up(self, id: str, record: HeldRecord) -> None:
        self._num_bytes -= record.num_bytes
        record.give_up(
            f"the router keeps at most {self._max_kept_bytes >> 20} MiB of records of a node's "
            "programs, and it would have been more"
        )
        logger.warning("program %s is lost if its node %s is: %s", id, self.node.name, record.stays)

    def _forget(self, id: str) -> None:
        record = self.kept.pop(id, None)
        if record is not None:
            self._num_bytes -= record.num_bytes


def reader_name() -> str:
    """Return a name for a router, which nodes cannot mistake for another's."""
    return secrets.token_hex(8)


def message_of(answer: bytes) -> str:
    """Return the message of a node's refusal."""
    try:
        return str(msgspec.json.decode(answer, type=dict[str, Any])["error"]["message"])
    except (*UNREADABLE, KeyError, TypeError):
        return answer[:200].decode(errors="replace")
