"""Notices an engine that loads without progress: its process may answer heartbeats for ever, while
the file system that it reads from answers nothing.

Owns how long a load has stood still. Must not know what is loaded, nor how a load is ended.
"""

from __future__ import annotations

from quire.core.interfaces import ProgramClock

_NUM_STEPS = 60


class LoadingWatch:
    """One load. It has stalled when nothing has moved for ``limit_s``."""

    def __init__(self, clock: ProgramClock, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._step_s = limit_s / _NUM_STEPS
        self._stood_s = 0.0
        self._at = ("starting", 0.0)

    def moved(self, stage: str, fraction: float) -> None:
        """Note how far the load is: ``fraction`` (from 0 to 1) of ``stage``."""
        if (stage, fraction) != self._at:
            self._at = (stage, fraction)
            self._stood_s = -self._step_s  # a part of the present step has passed already

    async def stalled(self) -> str:
        """Wait until the load has stalled; return where it stands, in words. Time in which this
        loop itself stood still (the whole node was stopped, or the machine) does not count: each
        wait counts as one step, however late it ends."""
        while self._stood_s < self._limit_s:
            await self._clock.sleep(self._step_s)
            self._stood_s += self._step_s
        stage, fraction = self._at
        return f"{stage}, {fraction:.0%}"
