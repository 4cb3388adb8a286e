"""The clock of this machine, which a node's control, services and programs share."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """``ProgramClock`` of this machine. ``now_s`` uses the clock of the event loops' timers."""

    def now_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
