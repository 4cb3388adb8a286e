"""Runs a store's blocking calls on threads of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from quire.core.errors import Draining

T = TypeVar("T")


class StoreThreads:
    """The threads of one store, for any loop and thread; at most ``num`` jobs run at a time.
    ``what``: the store's name in messages."""

    def __init__(self, num: int, what: str = "vector store") -> None:
        self._what = what
        self._threads = ThreadPoolExecutor(num, thread_name_prefix=f"quire-{what.split()[0]}")

    async def run(self, job: Callable[[], T]) -> T:
        """Run ``job`` and return its result. Cancelling the wait does not cancel the job.

        Raises:
            Draining: the store is closed.
        """
        try:
            future = self._threads.submit(job)
        except RuntimeError as exc:
            raise Draining(f"the node is stopping: its {self._what} is closed") from exc
        result = asyncio.wrap_future(future)
        result.add_done_callback(_retrieve)
        return await asyncio.shield(result)

    def later(self, job: Callable[[], object]) -> None:
        """Run ``job`` without waiting for it; do nothing if the store is closed."""
        with suppress(RuntimeError):
            self._threads.submit(job)

    def close(self) -> None:
        """End the threads. Blocks until every job has ended. Idempotent."""
        self._threads.shutdown()


def _retrieve(result: asyncio.Future[T]) -> None:
    """Look at the error of a job for which nobody waits any more; asyncio would log it."""
    if not result.cancelled():
        result.exception()
