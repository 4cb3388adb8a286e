"""Event loops: calling onto one of another thread, waking all who wait on one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
    """Run ``callback`` soon on ``loop``, from any thread. False: the loop has closed.

    Asking first whether the loop is closed would leave a race with its owner.
    """
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if loop.is_closed():
            return False
        raise
    return True


class Bell:
    """Wakes everyone who waits, once per ring. Belongs to one loop; whoever wakes looks again at
    what it waits for."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    async def wait(self) -> None:
        await self._rung.wait()


__all__ = ["Bell", "call_on"]
