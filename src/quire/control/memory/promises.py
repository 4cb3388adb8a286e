"""Blocks that were promised to those who wait for them while they are on their way to be free.

A claim that others' contents make way for is met when these have moved out, some messages later.
Until then nobody junior takes the blocks: a junior one that brought its own contents back with them
would be moved out again for the senior claim, and so on for ever. Owns the numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable

Order = tuple[float, ...]


class Reclaim:
    """Somebody who wants blocks, and how others make way.

    ``order``: the smaller, the more senior; None for what takes only blocks that nobody waits for.
    ``give_up(n)``: let others give up so many blocks, now or by transfers that begin; False when
    nothing more can go.
    """

    __slots__ = ("give_up", "order")

    def __init__(self, order: Order | None, give_up: Callable[[int], bool]) -> None:
        self.order = order
        self.give_up = give_up


def _nothing(num_blocks: int) -> bool:
    return False


NO_RECLAIM = Reclaim(None, _nothing)
"""For what is a luxury: nobody gives up memory for it."""


class Promises:
    """How many blocks each of those who wait has been promised.

    Who does not ask again from one ``renew`` to the next has ended, or waits for something else.
    """

    def __init__(self) -> None:
        self._renewed: dict[Order, int] = {}
        self._before: dict[Order, int] = {}

    def __bool__(self) -> bool:
        return bool(self._renewed or self._before)

    def renew(self) -> None:
        """A message is planned: everybody who waits asks once more."""
        self._before, self._renewed = self._renewed, {}

    def give(self, order: Order, num_blocks: int) -> None:
        self._before.pop(order, None)
        self._renewed[order] = num_blocks

    def drop(self, order: Order) -> None:
        self._before.pop(order, None)
        self._renewed.pop(order, None)

    def clear(self) -> None:
        self._before.clear()
        self._renewed.clear()

    def ahead_of(self, order: Order | None) -> int:
        """Blocks promised to those who are senior to ``order``; to all of them for None."""
        promised = [*self._before.items(), *self._renewed.items()]
        return sum(num for other, num in promised if order is None or other < order)
