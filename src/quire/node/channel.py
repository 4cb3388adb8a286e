"""A bounded hand-over of items between two tasks, of one event loop or of two, with back-pressure.

The producer waits while the buffer is full; the consumer waits while it is empty. Each side wakes
the other with at most one call per change. Knows nothing of what the items are.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from quire.node.loops import call_on

T = TypeVar("T")


class _Waiters:
    """Futures of one side, each on its own loop; woken from any thread."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def add(self) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        return future

    def wake(self) -> None:
        if not self._futures:
            return
        futures, self._futures = self._futures, []
        here = _loop_here()
        for future in futures:
            if future.get_loop() is here:  # without a hand-over between loops, which costs a wake
                _resolve(future)
            else:
                call_on(future.get_loop(), _resolve, future)


def _loop_here() -> asyncio.AbstractEventLoop | None:
    """The loop that runs the caller, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Channel(Generic[T]):
    """First in, first out; ``capacity`` items at most between the two tasks.

    ``close`` ends it: the consumer gets what is buffered, then the end (or ``error``). ``discard``
    is the consumer's way out: the buffer is dropped and producers stop waiting.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._readers = _Waiters()
        self._writers = _Waiters()
        self._closed = False
        self._discarded = False
        self._error: BaseException | None = None

    @property
    def discarded(self) -> bool:
        return self._discarded

    def put_now(self, item: T) -> bool:
        """Add ``item`` without waiting. False: there is no room, or the channel has ended."""
        with self._lock:
            if self._closed or self._discarded or len(self._items) >= self._capacity:
                return False
            self._items.append(item)
            self._readers.wake()
            return True

    async def put(self, item: T) -> bool:
        """Add ``item``, waiting for room. False: the channel has ended and the item is dropped."""
        while True:
            with self._lock:
                if self._closed or self._discarded:
                    return False
                if len(self._items) < self._capacity:
                    self._items.append(item)
                    self._readers.wake()
                    return True
                room = self._writers.add()
            await room

    def close(self, error: BaseException | None = None) -> None:
        """No further item will come. Idempotent: the first call decides. From any thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._error = error
                self._readers.wake()
                self._writers.wake()

    def discard(self) -> None:
        """Nobody reads any more. Idempotent; from any thread."""
        with self._lock:
            self._discarded = True
            self._items.clear()
            self._readers.wake()
            self._writers.wake()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            with self._lock:
                if self._items:
                    self._writers.wake()
                    return self._items.popleft()
                if self._discarded:
                    raise StopAsyncIteration
                if self._closed:
                    if self._error is not None:
                        raise self._error
                    raise StopAsyncIteration
                arrival = self._readers.add()
            await arrival


__all__ = ["Channel"]
