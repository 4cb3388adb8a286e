"""The clock of a running node: its control, its services and its programs read the same one."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """``ProgramClock`` of this machine. Monotonic seconds are those that loops' timers count in."""

    def now_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
