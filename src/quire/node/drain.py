"""The time in which running work may finish when a node stops. Belongs to one loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any


class Drain:
    """Ends a wait for running work at its time limit; of several limits the earliest applies."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._ends_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, limit_s: float) -> None:
        """Let work go on for at most ``limit_s`` seconds from now."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + limit_s
        if self._ends_s <= ends_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._ends_s = ends_s
        self._timer = loop.call_at(ends_s, self._ended.set)

    async def wait(self, idle: Coroutine[Any, Any, None]) -> None:
        """Wait until ``idle`` returns or the time is over."""
        waiting = {asyncio.create_task(idle), asyncio.create_task(self._ended.wait())}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        self._ends_s = -math.inf
        if self._timer is not None:
            self._timer.cancel()
