"""Ends work whose client has disconnected, reads too slowly, or has waited for as long as it may.

Owns the wait for the end of one piece of work. Must not know what the work is: a router, which
passes answers on, uses it as well as a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from starlette.types import Receive

from quire.server.answers.write_limit import SlowReader, WriteLimit

Outcome = Literal["ended", "disconnected", "timeout"]
"""Which came first: the end of the work, its client's disconnect, or the end of the time."""


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected. A late body, which nobody reads, is not a
    disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(
    work: asyncio.Task[Any],
    receive: Receive | None,
    *,
    writes: WriteLimit | None = None,
    limit_s: float | None = None,
    on_cancel: Callable[[bool], None] | None = None,
) -> Outcome:
    """Wait for the end of ``work`` while its client is connected; then cancel it, and return when
    it has ended. Its failure is left in the task.

    ``receive``: None if the work itself notices a disconnect. ``writes`` limits each of its writes.
    ``limit_s``: how long it may take, in seconds. ``on_cancel`` is called before work that has not
    ended is cancelled, with whether its client has disconnected; if not, the time is over or the
    caller itself is cancelled.
    """
    gone = None if receive is None else asyncio.create_task(disconnected(receive))
    tasks = {work} if gone is None else {work, gone}
    if writes is not None:
        writes.watch(work)
    try:
        await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return "ended"
        return "timeout" if gone is None or not gone.done() else "disconnected"
    finally:
        if writes is not None:
            writes.stop()
        if on_cancel is not None and not work.done():
            on_cancel(gone is not None and gone.done())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def raise_failure(work: asyncio.Task[Any]) -> None:
    """Raise the failure of finished ``work``, unless it was cancelled or its client read too
    slowly: there is nobody to whom that could be told."""
    if not work.cancelled() and not isinstance(work.exception(), SlowReader):
        work.result()
