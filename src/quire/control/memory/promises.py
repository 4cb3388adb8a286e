"""Blocks that are promised to waiting claims while transfers make them free.

A claim for which others' contents are moved out is met when their transfers have ended, some
messages later. Until then no junior claim may take the blocks: it would swap its own contents in,
which would be moved out again for the senior claim, and so on without end. Owns the numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.core.ids import ProgramId

Order = tuple[float, ...]


class Reclaim:
    """A claim for blocks, and the way in which others free them.

    ``order``: smaller is more senior; None for a claim that takes only blocks for which no other
    waits. ``program``: the program that makes the claim. ``give_up(n)``: make others free that many
    blocks, now or by transfers that begin; False if they cannot free any more.
    """

    __slots__ = ("give_up", "order", "program")

    def __init__(
        self,
        order: Order | None,
        give_up: Callable[[int], bool],
        program: ProgramId | None = None,
    ) -> None:
        self.order = order
        self.program = program
        self.give_up = give_up


def _nothing(num_blocks: int) -> bool:
    return False


NO_RECLAIM = Reclaim(None, _nothing)
"""The claim of optional work: it takes memory from no other."""


class PromisedBlocks:
    """The number of blocks promised to each waiting claim.

    A claim that is not made again between two calls of ``renew`` has ended, or waits for something
    else; the second call forgets it.
    """

    def __init__(self) -> None:
        self._renewed: dict[Order, int] = {}
        self._before: dict[Order, int] = {}

    def __bool__(self) -> bool:
        return bool(self._renewed or self._before)

    def renew(self) -> None:
        """Begin a new round, as a message is planned: every claim that still waits is made
        again."""
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
        """Blocks promised to claims senior to ``order``; to all claims for None."""
        promised = [*self._before.items(), *self._renewed.items()]
        return sum(num for other, num in promised if order is None or other < order)
