"""``FunctionThreads``: runs the plain functions of one application, which may block.

They have threads of their own: the executor of a loop has a few threads for all programs, which
functions that never return would use up, and Python waits for its threads at exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

MAX_AT_ONCE = 64
"""The most functions of one application that run at a time; further calls wait for one to end."""

Job = tuple[Future[Any], Callable[[], Any]]


class FunctionThreads:
    """For any loop and thread. A thread ends when no call waits for it; one whose function never
    returns ends with the process."""

    def __init__(self, most: int = MAX_AT_ONCE) -> None:
        self._most, self._num_running = most, 0
        self._waiting = deque[Job]()
        self._lock = threading.Lock()

    async def run(self, function: Callable[..., Any], **given: Any) -> Any:
        """Call ``function`` in a thread and return its result. Cancelling the wait cancels a call
        that has not begun; another one goes on, and nobody waits for it."""
        future = Future[Any]()
        job = future, partial(contextvars.copy_context().run, function, **given)
        with self._lock:
            begins = self._num_running < self._most
            if begins:
                self._num_running += 1
            else:
                self._waiting.append(job)
        if begins:
            self._start(job, f"quire-function-{getattr(function, '__name__', 'call')}")
        return await asyncio.wrap_future(future)

    def _start(self, job: Job, name: str) -> None:
        """Start a thread with ``job``.

        Raises:
            RuntimeError: the system gives the process no further thread.
        """
        try:
            threading.Thread(target=self._work, args=(job,), name=name, daemon=True).start()
        except RuntimeError as exc:
            with self._lock:
                self._num_running -= 1
                stranded = [] if self._num_running else list(self._waiting)
                if stranded:  # no thread is left that would take them
                    self._waiting.clear()
            for future, _ in stranded:
                if future.set_running_or_notify_cancel():
                    future.set_exception(RuntimeError(*exc.args))
            raise

    def _work(self, job: Job) -> None:
        while True:
            _carry_out(*job)
            with self._lock:
                if not self._waiting:
                    self._num_running -= 1
                    return
                job = self._waiting.popleft()


def _carry_out(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except StopIteration as exc:  # asyncio refuses it as the exception of a future
        future.set_exception(RuntimeError(f"StopIteration: {exc}".rstrip(": ")))
    except BaseException as exc:
        future.set_exception(exc)
    else:
        future.set_result(result)
