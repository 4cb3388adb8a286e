"""Pools of numbered resources: device blocks, host blocks, embed slots, sequence ids.

Owns which numbers are free. Does not know what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping


def num_reserved(size: int) -> int:
    """The reserve of a pool of ``size``; a pool of fewer than 8 has none."""
    return size // 8


class NumberPool:
    """Numbers 0..size-1, each free or taken. The number freed last is taken first. ``num_freed``
    counts calls of ``free``."""

    __slots__ = ("_free", "_taken", "num_freed", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))
        self._taken = bytearray(size)
        self.num_freed = 0

    @property
    def num_reserved(self) -> int:
        """How many of the last free numbers are reserved for holders of few: the pool cannot take a
        number back, so one holder of all numbers would stop all others."""
        return num_reserved(self.size)

    def may_take(self, num_more: int, num_held: int) -> bool:
        """Whether a holder of ``num_held`` numbers may take ``num_more`` without using the reserve,
        or would hold no more than the reserve afterwards."""
        reserved = self.num_reserved
        return len(self._free) - num_more >= reserved or num_held + num_more <= reserved

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_taken(self) -> int:
        return self.size - len(self._free)

    def take(self) -> int | None:
        """A free number, or None when all are taken."""
        if not self._free:
            return None
        number = self._free.pop()
        self._taken[number] = 1
        return number

    def free(self, number: int) -> None:
        assert self._taken[number], f"{number} is freed twice"
        self._taken[number] = 0
        self._free.append(number)
        self.num_freed += 1

    def is_taken(self, number: int) -> bool:
        return bool(self._taken[number])

    def has_holder(self, number: int) -> bool:
        """Whether whoever took ``number`` has not freed it."""
        return self.is_taken(number)

    def check_invariants(self) -> None:
        """Assert that each number is either free or taken, and is free once."""
        assert len(set(self._free)) == len(self._free), "a number is free twice"
        assert sum(self._taken) + len(self._free) == self.size, "a number is lost"
        assert not any(self._taken[number] for number in self._free), "a taken number is free"


class LendingPool(NumberPool):
    """Numbers that may be lent, several times at once, to whoever only reads what they hold. One
    that its holder frees meanwhile is free when all have given it back."""

    __slots__ = ("_left", "_lent")

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._lent: dict[int, int] = {}
        self._left: set[int] = set()

    @property
    def lent(self) -> Mapping[int, int]:
        """How often each number is lent that is."""
        return self._lent

    def lend(self, number: int) -> None:
        """Keep ``number``, which has a holder, taken until ``give_back``."""
        assert self.has_holder(number), f"{number} is lent without a holder"
        self._lent[number] = self._lent.get(number, 0) + 1

    def give_back(self, number: int) -> None:
        if self._lent[number] > 1:
            self._lent[number] -= 1
            return
        del self._lent[number]
        if number in self._left:
            self._left.remove(number)
            super().free(number)

    def free(self, number: int) -> None:
        if number not in self._lent:
            super().free(number)
            return
        assert number not in self._left, f"{number} is freed twice"
        self._left.add(number)

    def has_holder(self, number: int) -> bool:
        """Whether whoever took ``number`` has not freed it."""
        return self.is_taken(number) and number not in self._left

    def check_invariants(self) -> None:
        """Assert also that what is lent is taken."""
        super().check_invariants()
        assert all(self.is_taken(number) for number in self._lent), "a lent number is free"
        assert self._left <= self._lent.keys(), "a number that nobody has is taken"
