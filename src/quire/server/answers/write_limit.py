"""Notices that a client reads too slowly.

Owns the time of one write and nothing else. Must not know what is written: a router, which passes
answers on, uses it as well as a node.
"""

from __future__ import annotations

import asyncio


class SlowReader(Exception):
    """A single write to the client has taken the whole time limit."""


class WriteLimit:
    """Ends a task whose write takes longer than ``limit_s``: the task gets ``SlowReader``.

    Use as ``with`` around each write of the task. A timer per write would cost more than the write
    itself, so one periodic timer checks when the current write began.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: float | None = None
        self._expired = False

    def watch(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._limit_s, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        waited_s = 0.0 if self._since_s is None else self._loop.time() - self._since_s
        if waited_s >= self._limit_s:
            self._expired = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_later(self._limit_s - waited_s, self._look)

    def __enter__(self) -> None:
        self._since_s = self._loop.time()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: object
    ) -> None:
        self._since_s = None
        if self._expired and isinstance(exc, asyncio.CancelledError):
            raise SlowReader(f"the client has read nothing for {self._limit_s:g} s") from exc
