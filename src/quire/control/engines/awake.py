"""The engines that the next decision looks at: something has happened to them, or may be due.

An event concerns one engine, of 64 as of one. Owns their numbers, in the order in which they came
up first. Does not know what an engine is, nor who has to be looked at.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Awake:
    """Each number once, in rising order."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def add(self, number: int) -> None:
        index = bisect_left(self._numbers, number)
        if index == len(self._numbers) or self._numbers[index] != number:
            self._numbers.insert(index, number)

    def after(self, number: int) -> int | None:
        """The first one above ``number``. So those are met, too, that are added meanwhile."""
        index = bisect_right(self._numbers, number)
        return self._numbers[index] if index < len(self._numbers) else None

    def all(self) -> list[int]:
        """A copy, in order."""
        return self._numbers.copy()

    def keep(self, numbers: list[int]) -> None:
        """These alone, which are in order."""
        self._numbers = numbers

    def __contains__(self, number: object) -> bool:
        return number in self._numbers
