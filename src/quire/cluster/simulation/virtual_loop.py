"""An event loop in virtual time: instead of waiting, it sets the clock to the next due time.

Coroutines run on it as on any loop of asyncio if they wait only for times and for one another:
there are no sockets, threads or processes. Callbacks that are due at the same time run in the order
in which they were scheduled, so every run is the same. Must not know what it runs.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

from quire.core.errors import InvalidArgument
from quire.simulation.clock import VirtualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.AbstractEventLoop):
    """Only this loop may move ``clock``."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._agenda: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._faults: list[BaseException] = []
        self._is_running = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, and return what it returns.

        Raises:
            InvalidArgument: ``work`` waits for something that will never happen.
            BaseException: raised by ``work`` or by a callback.
        """
        task: asyncio.Task[T] = self.create_task(work)
        self._is_running = True
        asyncio._set_running_loop(self)  # for those who implement a loop, as its docstring says
        try:
            while not task.done():
                self._step()
            self._cancel_rest(task)
        finally:
            asyncio._set_running_loop(None)
            self._is_running = False
        return task.result()

    def _step(self) -> None:
        if not self._ready:
            self._go_on()
        handle = self._ready.popleft()
        if not handle.cancelled():
            handle._run()
        if self._faults:
            raise self._faults[0]

    def _go_on(self) -> None:
        """Advance the clock to the next due time."""
        while self._agenda:
            when, _, handle = heapq.heappop(self._agenda)
            if not handle.cancelled():
                self._clock.advance_to(when)
                self._ready.append(handle)
                return
        raise InvalidArgument(
            "nothing is left to happen in virtual time, and the work waits: it waits for something "
            "outside, such as a thread or a socket"
        )

    def _cancel_rest(self, task: asyncio.Task[Any]) -> None:
        """Cancel the remaining tasks, as ``asyncio.run`` does."""
        rest = [one for one in asyncio.all_tasks(self) if one is not task]
        for one in rest:
            one.cancel()
        while self._ready and not all(one.done() for one in rest):
            self._step()

    # -- asyncio.AbstractEventLoop -----------------------------------------------------------------

    def time(self) -> float:
        return self._clock.now_s()

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._agenda, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the handle stays in the agenda until its time."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run if a callback raised; an exception of a task that is never awaited does not
        end it."""
        if "handle" in context and isinstance(context.get("exception"), BaseException):
            self._faults.append(context["exception"])
