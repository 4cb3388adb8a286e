"""The clock of a running node, which its control, its services and its programs share."""

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
