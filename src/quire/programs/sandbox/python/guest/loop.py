"""An asyncio loop that is run from outside: it runs everything that is ready, then returns.

Owns the ready callbacks and the timers. It never waits and has no files, sockets or threads: a
function for an executor (``asyncio.to_thread``) runs at once, in place.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast


class GuestLoop:
    """The part of ``AbstractEventLoop`` that programs and asyncio use. ``turn`` runs it until
    nothing is ready."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self._task_factory: Any = None

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        """This loop, typed as an ``AbstractEventLoop``."""
        return cast(asyncio.AbstractEventLoop, self)

    def turn(self) -> None:
        asyncio._set_running_loop(self.as_loop)
        try:
            self._take_due()
            ready = self._ready
            while ready:
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)

    def next_timer_s(self) -> float | None:
        """Seconds until the next timer, ``None`` if there is none."""
        while self._timers and self._timers[0].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].when() - self.time())

    def _take_due(self) -> None:
        now_s = self.time()
        while self._timers and self._timers[0].when() <= now_s:
            self._ready.append(heapq.heappop(self._timers))

    # -- what asyncio asks of a loop ---------------------------------------------------------------

    def time(self) -> float:
        return time.monotonic()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self.as_loop, context)
        heapq.heappush(self._timers, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing; called by asyncio. A cancelled timer is dropped when it becomes the first."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_loop)

    def create_task(self, coro: Any, **options: Any) -> Any:
        if self._task_factory is None:
            return asyncio.Task(coro, loop=self.as_loop, **options)
        return self._task_factory(self, coro, **options)

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Write uncaught errors to the program's log."""
        print(context.get("message", "an uncaught error"), file=sys.stderr)
        if (error := context.get("exception")) is not None:
            traceback.print_exception(error, file=sys.stderr)

    async def shutdown_asyncgens(self) -> None:
        """Do nothing: a guest ends with its memory."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
