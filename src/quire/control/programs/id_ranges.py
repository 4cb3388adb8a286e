"""A set of ids that mostly increase, kept as ranges.

Owns the set and its bound: a program that lives for months remembers all of its ended commands in a
few words of memory. Each call of a session starts at a new id far above the previous ones, which
adds one range.
"""

from __future__ import annotations

from bisect import bisect_right

MAX_RANGES = 1 << 16


class IdRanges:
    """Ids, as sorted disjoint ranges [start, end). Beyond ``max_ranges`` the two lowest ranges are
    merged: the ids between them count as members, because no new command has an id so low."""

    __slots__ = ("_ends", "_max_ranges", "_starts")

    def __init__(self, max_ranges: int = MAX_RANGES) -> None:
        self._max_ranges = max_ranges
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        if not self._ends or number >= self._ends[-1]:
            return False  # the usual case: a new id
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._ends[place]

    def add(self, number: int) -> None:
        """Add one id; adding it twice changes nothing."""
        if self._ends and self._ends[-1] == number:
            self._ends[-1] = number + 1
            return
        if number in self:
            return
        after = bisect_right(self._starts, number)
        joins_before = after > 0 and self._ends[after - 1] == number
        joins_after = after < len(self._starts) and self._starts[after] == number + 1
        if joins_before and joins_after:
            self._ends[after - 1] = self._ends.pop(after)
            del self._starts[after]
        elif joins_before:
            self._ends[after - 1] = number + 1
        elif joins_after:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._ends.insert(after, number + 1)
            if len(self._starts) > self._max_ranges:
                del self._starts[1], self._ends[0]

    @property
    def lowest(self) -> int:
        """The lowest member; 0 if there is none."""
        return self._starts[0] if self._starts else 0

    @property
    def num_ranges(self) -> int:
        return len(self._starts)
