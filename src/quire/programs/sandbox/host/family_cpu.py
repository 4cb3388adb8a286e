"""The common processor time of the guests of one family: a program and its descendants.

A family runs in one sandbox process, so the sum is kept there. Belongs to one loop.
"""

from __future__ import annotations

from collections import OrderedDict

_KEPT_IDLE = 1024
"""Families without a living guest whose used time is remembered for later guests."""


class FamilyCpu:
    """The processor time of one family. ``limit_ms``: that of all of its guests together, including
    ended ones."""

    __slots__ = ("limit_ms", "num_living", "spent_ns")

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self.spent_ns = 0
        self.num_living = 0

    @property
    def left_ms(self) -> float:
        return self.limit_ms - self.spent_ns / 1e6


class FamilyCpus:
    """Families by the number that the node gave them."""

    def __init__(self, num_idle: int = _KEPT_IDLE) -> None:
        self._num_idle = num_idle
        self._families: dict[int, FamilyCpu] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._families)

    def enter(self, number: int, limit_ms: int) -> FamilyCpu:
        """Note that a guest of the family starts."""
        family = self._families.get(number)
        if family is None:
            family = self._families[number] = FamilyCpu(limit_ms)
        self._idle.pop(number, None)
        family.num_living += 1
        return family

    def leave(self, number: int) -> None:
        """Note that a guest of the family has ended."""
        family = self._families[number]
        family.num_living -= 1
        if family.num_living == 0:
            self._idle[number] = None
            if len(self._idle) > self._num_idle:
                oldest, _ = self._idle.popitem(last=False)
                del self._families[oldest]
