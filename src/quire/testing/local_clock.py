"""The clock of a ``LocalNode`` as its programs read it."""

from __future__ import annotations

import asyncio

from quire.simulation.clock import VirtualClock

EPOCH_S = 1_700_000_000.0
"""Unix time when the virtual clock is at 0."""


class LocalClock:
    """``ProgramClock`` over virtual time, which advances with engines' messages and while a program
    sleeps."""

    def __init__(self, virtual: VirtualClock) -> None:
        self._virtual = virtual

    def now_s(self) -> float:
        return self._virtual.now_s()

    def unix_s(self) -> float:
        return EPOCH_S + self._virtual.now_s()

    async def sleep(self, seconds: float) -> None:
        until_s = self._virtual.now_s() + seconds
        await asyncio.sleep(seconds)
        self._virtual.advance_to(until_s)
