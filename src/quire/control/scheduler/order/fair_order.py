"""Keeps commands in the order in which they go, as they come, change and leave.

Owns sorted lines, one for each tenant, and the order between them under the fair share. An arrival
or a change costs the logarithm of those that wait, and only entries that are taken are examined: a
message costs the same however many wait behind. Does not know what an entry's rank means. Under a
policy with stages the order differs for each message (``buckets``), which ``begin`` starts.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator

from quire.control.programs.program import Entry
from quire.control.scheduler.order.buckets import Buckets, Rank
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import class_of, rank_of
from quire.core.ids import TenantId

LineKey = tuple[int, TenantId]
"""Class (the smaller goes first, whatever the share), tenant."""


class RankedEntries:
    """Entries sorted by ``Entry.rank``. Ranks are unique and do not change while an entry is
    here."""

    __slots__ = ("entries", "key", "ranks", "serial")

    def __init__(self, key: LineKey, serial: int) -> None:
        self.key = key
        self.serial = serial
        self.ranks: list[Rank] = []
        self.entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self.entries)

    def first(self) -> Entry | None:
        return self.entries[0] if self.entries else None

    def add(self, entry: Entry) -> None:
        rank = rank_of(entry)
        index = bisect_left(self.ranks, rank)
        self.ranks.insert(index, rank)
        self.entries.insert(index, entry)

    def remove(self, entry: Entry) -> None:
        index = bisect_left(self.ranks, rank_of(entry))
        assert self.entries[index] is entry, "an entry's rank changed while it stood in a line"
        del self.ranks[index]
        del self.entries[index]

    def take(self, entry: Entry) -> None:
        """Remove ``entry`` for the message that is being made."""
        self.remove(entry)

    def begin(self) -> None:
        """Begin another message."""

    def check_invariants(self) -> None:
        assert self.ranks == sorted(self.ranks), "a line is not in order"
        assert self.ranks == [rank_of(entry) for entry in self.entries]
        assert len(set(self.ranks)) == len(self.ranks), "two entries have one rank"


class StagedLine(RankedEntries):
    """Entries under a policy with stages. ``entries`` stays empty."""

    __slots__ = ("_buckets",)

    def __init__(self, key: LineKey, serial: int) -> None:
        super().__init__(key, serial)
        self._buckets: Buckets[Entry] = Buckets()

    def __len__(self) -> int:
        return len(self._buckets)

    def first(self) -> Entry | None:
        return self._buckets.first()

    def add(self, entry: Entry) -> None:
        self._buckets.add(entry, rank_of(entry), entry.stage, entry.program.id)

    def remove(self, entry: Entry) -> None:
        self._buckets.remove(rank_of(entry), entry.stage, entry.program.id)

    def take(self, entry: Entry) -> None:
        self._buckets.take(rank_of(entry), entry.stage, entry.program.id)

    def begin(self) -> None:
        self._buckets.begin()

    def check_invariants(self) -> None:
        self._buckets.check_invariants()


def new_line(key: LineKey, serial: int, *, staged: bool) -> RankedEntries:
    return StagedLine(key, serial) if staged else RankedEntries(key, serial)


class FairOrder:
    """Waiting entries: the tenant that is furthest behind goes first, within it the best rank.

    The heap of lines is corrected lazily, because a tenant's virtual time only grows. ``staged``:
    whether entries go by stages.
    """

    def __init__(self, share: FairShare, *, staged: bool = False) -> None:
        self._share = share
        self._staged = staged
        self._touched: dict[RankedEntries, None] = {}
        self._lines: dict[LineKey, RankedEntries] = {}
        self._line_of: dict[Entry, RankedEntries] = {}
        self._heap: list[tuple[int, float, int, RankedEntries]] = []
        self._num_lines = 0

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, entry: object) -> bool:
        return entry in self._line_of

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._line_of)

    def add(self, entry: Entry) -> None:
        tenant = entry.program.tenant
        key = (class_of(entry), tenant)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = new_line(key, self._num_lines, staged=self._staged)
            self._num_lines += 1
            heapq.heappush(self._heap, (key[0], self._share.start(tenant), line.serial, line))
        if not len(line):
            self._share.enter(tenant)
        line.add(entry)
        self._line_of[entry] = line

    def discard(self, entry: Entry) -> bool:
        """Take ``entry`` out; return False if it is not here."""
        line = self._line_of.pop(entry, None)
        if line is None:
            return False
        line.remove(entry)  # an empty line is dropped when it is at the top of the heap
        return True

    def take(self, entry: Entry) -> None:
        """Take ``entry``, which is here, into the message that is being made."""
        line = self._line_of.pop(entry)
        line.take(entry)
        if self._staged:
            self._touched[line] = None

    def begin(self) -> None:
        """Begin another message."""
        for line in self._touched:
            line.begin()
        self._touched.clear()

    def first(self) -> Entry | None:
        """The entry that goes first; it stays."""
        heap = self._heap
        while heap:
            level, start, serial, line = heap[0]
            if not len(line):
                heapq.heappop(heap)
                del self._lines[line.key]
                continue
            now = self._share.start(line.key[1])
            if now > start:
                heapq.heapreplace(heap, (level, now, serial, line))
                continue
            return line.first()
        return None

    def pop(self) -> Entry | None:
        """Take the entry that goes first."""
        entry = self.first()
        if entry is not None:
            self.take(entry)
        return entry

    def check_invariants(self) -> None:
        in_heap = {id(line) for _, _, _, line in self._heap}
        assert len(in_heap) == len(self._heap), "a line stands in the heap twice"
        for key, line in self._lines.items():
            assert line.key == key
            assert id(line) in in_heap, "a line is never looked at"
            line.check_invariants()
            assert all(self._line_of.get(entry) is line for entry in line.entries)
        assert sum(len(line) for line in self._lines.values()) == len(self._line_of)
