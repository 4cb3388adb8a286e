"""Brings pages back to the device before the program that waits is expected to call.

Owns which families are expected, and when. A family whose pages have begun to leave the device is
expected when keeping them there is worth its price again: the rule of ``returns``, with the time to
move as much as the device holds in place of the time to compute it: from the host, and earlier from
the disk, once its pages have begun to go there. It is fetched once in a wait from each of the two,
into blocks that are free beyond the reserve of ``demotion``, or that hold contents which are not
expected to be needed: to move others out for it would gain nothing, and calls that find no free
block evict pages that are needed. A fetched page is cached as others are: it may be evicted again
before its program calls.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.content import Content
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.pausing.working_sets import FamilyWorkingSet
from quire.control.scheduler.timing.move_time import MoveTimes

Wait = tuple[FamilyWorkingSet, float]
"""A family, and when it became quiet."""


class Prefetch:
    """Fetches pages of one engine. ``num_fetched``: blocks that have begun to come back."""

    def __init__(
        self, engine: EngineState, gate: ProgramGate, times: MoveTimes, time: EventTime
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._times = times
        self._time = time
        self._expected: list[tuple[float, int, Wait]] = []
        self._num_noted = 0
        self.num_fetched = 0

    def left(self, content: Content) -> None:
        """Note that ``content``, which has no holder, has begun to move to the host or the disk."""
        family, is_on_disk = self._gate.resting(content), content.disk_block is not None
        block_s = (self._times.read if is_on_disk else self._times.host).block_s
        if family is None or block_s is None:
            return
        if family.has_spilled if is_on_disk else family.has_left:
            return
        family.has_left, family.has_spilled = True, is_on_disk
        back_s = self._gate.back_s(family, block_s * self._engine.memory.device.size)
        if back_s is not None and family.quiet_s is not None:
            self._num_noted += 1
            heapq.heappush(self._expected, (back_s, self._num_noted, (family, family.quiet_s)))
            self._forget_old()

    def _forget_old(self) -> None:
        """Drop families that have called meanwhile, so that they do not pile up."""
        if len(self._expected) > 64 + 2 * self._gate.num_families:
            self._expected = [one for one in self._expected if _is_current(one[2])]
            heapq.heapify(self._expected)

    def next_look_s(self) -> float | None:
        """When the next family is expected; None: none is, or it is handled with the next
        message."""
        if self._expected and self._expected[0][0] > self._time.now_s:
            return self._expected[0][0]
        return None

    def run(self, num_reserved: int) -> None:
        """Begin to fetch the pages of families that are expected by now, and leave ``num_reserved``
        blocks free."""
        expected, now_s = self._expected, self._time.now_s
        while expected and expected[0][0] <= now_s:
            wait = heapq.heappop(expected)[2]
            if _is_current(wait) and self._gate.has_place(wait[0]):
                self._fetch(wait[0], num_reserved)

    def _fetch(self, family: FamilyWorkingSet, num_reserved: int) -> None:
        """Fetch as many pages as there are blocks, and only once: trying again with each message
        would cost more than it gains."""
        away = list(self._away(family))
        num_free = self._make_free(num_reserved + len(away)) - num_reserved
        for content in away[: max(0, num_free)]:
            self._engine.memory.bring(content, family.id)
            self.num_fetched += 1

    def _make_free(self, num_blocks: int) -> int:
        """Make ``num_blocks`` free: of the contents that would be evicted next, evict those that
        are not expected to be needed. Returns how many are free."""
        memory = self._engine.memory
        num_promised = memory.promises.ahead_of(None)
        num_short = num_blocks + num_promised - memory.device.num_free
        if num_short > 0:
            for content in memory.index.least_recent(num_short):
                if not self._gate.chance_of(content):
                    memory.evict(content)
        return memory.device.num_free - num_promised

    def _away(self, family: FamilyWorkingSet) -> Iterator[Content]:
        """The contents of ``family`` on lower tiers, the beginnings of its contexts first. Those on
        the device are touched, so that they stay as long as those that come back."""
        index = self._engine.memory.index
        for leaf in self._gate.leaves_of(family):
            for node in leaf.path():
                content = index.lookup(node)
                if content is None:
                    break
                if content.block is not None or content.is_moving:
                    index.touch(content)
                else:
                    yield content


def _is_current(wait: Wait) -> bool:
    family, quiet_s = wait
    return family.quiet_s == quiet_s
