"""Waiting, on any event loop, for a condition that any thread may make true.

Owns the futures of the waiters. Must not know the condition.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Waiters:
    """Futures of any loops that wait for one condition. Guarded by its owner's lock.

    Every program has several of these, most of which are never used: they allocate nothing until
    then.
    """

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], asyncio.AbstractEventLoop] | None = None

    def __len__(self) -> int:
        return len(self._futures or ())

    def add(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._futures is None:
            self._futures = {}
        self._futures[future] = loop
        future.add_done_callback(self._forget)  # a cancelled future is removed at once
        return future

    def _forget(self, future: asyncio.Future[None]) -> None:
        if self._futures is not None:
            self._futures.pop(future, None)

    def wake(self) -> None:
        """Wake all, in the order of waiting; each checks the condition again."""
        if not self._futures:
            return
        futures, self._futures = self._futures, None
        for future, loop in list(futures.items()):
            with suppress(RuntimeError):  # the waiter's loop has closed
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
