"""Sends the records of a tenant's restartable programs to a router, which keeps them in case this
node is lost. The record of a program goes with those of its children.

A program's message to its clients waits until the router has the record that led to it: then
another node, which continues from that record, sends the same message. Without a reader nothing
waits. Owns the reader's identity, what it has acknowledged, and the programs that wait. Belongs to
the edge's loop. Must not know what is in a record.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable

from quire.core.errors import AlreadyExists
from quire.core.record_parts import EndedRecord, RecordsWanted, ToldPart, ToldRecords
from quire.node.loops import Bell
from quire.node.programs.restarting.told_family import ToldFamily

logger = logging.getLogger(__name__)

SILENT_S = 10.0
"""A reader that has not asked for this long counts as gone, and nothing waits for it any more."""

POLL_S = 2.0
"""The time after which a question gets an empty answer, if there is nothing to send."""

INTERVAL_S = 0.25
"""The least time between two looks at the programs of which nothing waits."""

_LOOK_SHARE = 0.05
"""The share of the loop's time that such looks may take, however many programs there are."""

_MAX_ANSWER_BYTES = 4 << 20


class RecordFeed:
    """The records of one tenant. ``interval_s``: see ``INTERVAL_S``; ``silent_s`` and ``poll_s``
    likewise."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        *,
        silent_s: float = SILENT_S,
        poll_s: float = POLL_S,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._now_s = now_s
        self._silent_s = silent_s
        self._poll_s = poll_s
        self._interval_s = interval_s
        self.name = secrets.token_hex(8)
        self._records: dict[str, ToldFamily] = {}
        self._refused: set[str] = set()
        """Programs that the reader knows to be unable to move."""
        self._ended: list[EndedRecord] = []
        self._reader = ""
        self._heard_s = -silent_s
        self._question = 0
        self._is_asked = self._has_left = False
        self._number = 0
        self._told_ended = 0
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._unacknowledged: dict[str, asyncio.Future[None]] = {}
        self._news = Bell()
        self._look_again_s = -math.inf
        self._is_closed = False

    @property
    def has_reader(self) -> bool:
        if self._is_closed or not self._reader:
            return False
        return self._is_asked or self._now_s() - self._heard_s < self._silent_s

    # -- for programs ------------------------------------------------------------------------------

    def add(self, record: ToldFamily) -> None:
        """Add the record of a program that runs."""
        self._records[record.id] = record

    def end(self, record: ToldFamily, *, may_be_lost: bool) -> None:
        """Drop the record: the program has ended, or is at another node. ``may_be_lost``: see
        ``EndedRecord``."""
        if self._records.pop(record.id, None) is None:
            return
        is_told = not record.is_first or record.id in self._refused
        self._refused.discard(record.id)
        for waiting in (self._wanted, self._unacknowledged):
            _settle([waiting.pop(record.id, None)])
        if self.has_reader and is_told:
            self._ended.append(EndedRecord(record.id, may_be_lost))
            self._news.ring()

    def waits_for(self, record: ToldFamily) -> bool:
        """Whether ``kept`` would wait. For a program that cannot move it waits until the reader has
        received the reason, once."""
        is_told = record.stays is not None and record.id in self._refused
        return self.has_reader and record.id in self._records and not is_told

    async def kept(self, record: ToldFamily) -> None:
        """Wait until the reader has the whole record of the program up to now, or is gone."""
        if not self.waits_for(record):
            return
        future = self._wanted.get(record.id)
        if future is None:
            future = self._wanted[record.id] = asyncio.get_running_loop().create_future()
            self._news.ring()
        done, _ = await asyncio.wait((future,), timeout=self._silent_s)
        if not done:
            logger.warning(
                "program %s goes on: whoever keeps its record has acknowledged nothing for %g s",
                record.id,
                self._silent_s,
            )

    def close(self) -> None:
        """Release everything that waits: the node stops. Idempotent."""
        self._is_closed = True
        _settle([*self._wanted.values(), *self._unacknowledged.values()])
        self._news.ring()

    # -- for the reader ----------------------------------------------------------------------------

    async def read(self, asked: RecordsWanted) -> ToldRecords:
        """The next parts of records, as soon as there are any; empty after ``poll_s``. The question
        acknowledges the last answer.

        Raises:
            AlreadyExists: another reader reads, or the same one has asked again meanwhile.
        """
        if self.has_reader and not self._has_left and asked.reader != self._reader:
            raise AlreadyExists("another router keeps the records of this node's programs")
        is_known = asked.reader == self._reader and asked.feed == self.name
        if is_known and asked.number == self._number:
            self._acknowledge()
        else:
            self._begin(asked.reader)
        self._has_left = False
        self._question = question = self._question + 1
        self._is_asked = True
        try:
            parts = await self._parts(question)
        finally:
            if question == self._question:
                self._is_asked, self._heard_s = False, self._now_s()
        self._number += 1
        self._told_ended = len(self._ended)
        return ToldRecords(self.name, self._number, parts, list(self._ended))

    def leave(self, reader: str) -> None:
        """Note that the reader has left, or its connection is lost. Another reader may follow at
        once; until ``silent_s`` is over, messages still wait for one."""
        if reader == self._reader:
            self._has_left = True

    async def _parts(self, question: int) -> list[ToldPart]:
        ends_s = self._now_s() + self._poll_s
        while True:
            if question != self._question:  # the parts that it took would be lost
                raise AlreadyExists("the same reader has asked again")
            parts = self._look()
            left_s = min(ends_s - self._now_s(), self._interval_s)
            if parts or self._ended or left_s <= 0 or self._is_closed:
                return parts
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _look(self) -> list[ToldPart]:
        """The next parts of the programs that wait, and now and then of all programs."""
        now_s = self._now_s()
        looks_at_all = now_s >= self._look_again_s
        found, num_bytes, is_cut = list[ToldPart](), 0, False
        for id in list(self._records if looks_at_all else self._wanted):
            if num_bytes >= _MAX_ANSWER_BYTES:
                is_cut = True
                break
            part = self._part_of(self._records[id])
            waits = self._wanted.pop(id, None)
            if part is not None:
                found.append(part)
                num_bytes += len(part.part)
            if part is None or part.stays is not None:
                _settle([waits])  # the reader has it
            elif waits is not None:
                self._unacknowledged[id] = waits
        if is_cut:
            self._look_again_s = -math.inf
        elif looks_at_all:
            ended_s = self._now_s()
            pause_s = max(self._interval_s, (ended_s - now_s) / _LOOK_SHARE)
            self._look_again_s = now_s + pause_s
        return found

    def _part_of(self, record: ToldFamily) -> ToldPart | None:
        part = record.part()
        if part is None or part.stays is None:
            self._refused.discard(record.id)  # what kept it here has ended
        elif record.id in self._refused:
            return None
        else:
            self._refused.add(record.id)
        return part

    def _begin(self, reader: str) -> None:
        if reader != self._reader:
            self._ended.clear()
        self._reader = reader
        self._refused.clear()
        self._told_ended = 0
        self._wanted = self._unacknowledged | self._wanted
        self._unacknowledged = {}
        self._look_again_s = -math.inf
        for record in self._records.values():
            record.anew()

    def _acknowledge(self) -> None:
        del self._ended[: self._told_ended]
        self._told_ended = 0
        kept, self._unacknowledged = self._unacknowledged, {}
        _settle(kept.values())


def _settle(futures: Iterable[asyncio.Future[None] | None]) -> None:
    for future in futures:
        if future is not None and not future.done():
            future.set_result(None)
