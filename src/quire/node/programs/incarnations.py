"""The incarnations of one launched program: the present one, and the figures of all.

Owns their order. Belongs to the edge's loop. Must not know why the next one is started.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from quire.core.ids import ProgramId
from quire.programs.runtime.running import GuestSpent, RunningProgram


class Incarnations:
    """The incarnations of a program, from its launch at this node to its end. ``follow`` is called
    with each one as it starts.

    ``started_s`` and ``ended_s`` are Unix times, ``duration_s`` lies between them; the last two are
    None until the end. ``spent``: the figures of each incarnation's guest.
    """

    present: RunningProgram

    def __init__(self, follow: Callable[[RunningProgram], None]) -> None:
        self._follow = follow
        self._start: Callable[[], RunningProgram] | None = None
        self._earlier: list[ProgramId] = []
        self._started_at = time.monotonic()
        self.spent: list[GuestSpent] = []
        self.started_s = time.time()
        self.ended_s: float | None = None
        self.duration_s: float | None = None

    def begin(self, start: Callable[[], RunningProgram], *, may_restart: bool) -> None:
        """Start the first incarnation. ``start`` gives the program to its runtime."""
        if may_restart:
            self._start = start
        self._take_up(start())

    def begin_next(self) -> ProgramId:
        """Start the next incarnation of a restartable program; return the number of the one before.

        Raises:
            QuireError: it cannot be started; the one before stays the present one.
        """
        assert self._start is not None, "the program is restartable and has not ended"
        before = self.present.id
        self._take_up(self._start())
        self._earlier.append(before)
        return before

    def _take_up(self, running: RunningProgram) -> None:
        self.present = running
        self.spent.append(running.spent)
        self._follow(running)

    def end(self) -> None:
        """Note that the program has ended: no incarnation follows."""
        self._start = None
        self.ended_s = time.time()
        self.duration_s = time.monotonic() - self._started_at

    @property
    def numbers(self) -> list[ProgramId]:
        """Every number that the program has had."""
        return [*self._earlier, self.present.id]
