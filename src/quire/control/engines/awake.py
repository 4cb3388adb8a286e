"""The engines that the next decision examines: something has happened to them, or may be due.

An event concerns one engine, whether the node has one or 64. Owns their numbers, in the order in
which they first came up. Does not know what an engine is, nor which one must be examined.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Awake:
    """Numbers in rising order, each once."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def add(self, number: int) -> None:
        index = bisect_left(self._numbers, number)
        if index == len(self._numbers) or self._numbers[index] != number:
            self._numbers.insert(index, number)

    def after(self, number: int) -> int | None:
        """The first one above ``number``; a loop over it also meets those that are added
        meanwhile."""
        index = bisect_right(self._numbers, number)
        return self._numbers[index] if index < len(self._numbers) else None

    def all(self) -> list[int]:
        """A copy of the numbers, in order."""
        return self._numbers.copy()

    def keep(self, numbers: list[int]) -> None:
        """Replace the numbers by ``numbers``, which are in order."""
        self._numbers = numbers

    def __contains__(self, number: object) -> bool:
        return number in self._numbers
