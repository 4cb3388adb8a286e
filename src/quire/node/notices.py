"""Notices from other threads to the loop that owns a node: a change of health, progress of loading.

Knows nothing of their content. Notices before ``begin`` are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple

from quire.node.loops import Bell, call_on
from quire.node.supervision.engine_loading import OnProgress

Ts = TypeVarTuple("Ts")


class NodeNotices:
    """Passes notices to the node's loop. ``begin`` and ``wait_health_change`` belong to that loop;
    every other method is for any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._progress: OnProgress | None = None
        self._health_changed = Bell()

    def begin(self, progress: OnProgress | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._progress = progress

    def tell(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Run ``callback`` soon on the node's loop."""
        if self._loop is not None:
            call_on(self._loop, callback, *args)

    def health_changed(self) -> None:
        self.tell(self._health_changed.ring)

    def report(self, text: str, fraction: float) -> None:
        """Report progress of loading; ``fraction`` is from 0 to 1."""
        if self._progress is not None:
            self.tell(self._progress, text, fraction)

    async def wait_health_change(self) -> None:
        await self._health_changed.wait()
