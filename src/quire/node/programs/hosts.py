"""Runs users' native programs on a loop thread of their own, apart from the edge's loop.

Code that may forget to await must not share a loop with HTTP. Built-in programs run on the edge's
loop, in the tasks that read them (``calls``). Owns the users' runtime and its end; a program that
blocks its loop for ever cannot keep the node from stopping.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from quire.node.loops import call_on
from quire.programs.runtime.native import NativeConfig, NativeRuntime
from quire.programs.runtime.watchdog import BlockedLoop

logger = logging.getLogger(__name__)

CLOSE_MARGIN_S = 1.0
"""Time for the thread to end, beyond the grace time, which a runtime may need twice; and for a loop
that is known to be blocked to turn again."""

OnBlocked = Callable[[BlockedLoop], None]


class ProgramHosts:
    """``start`` and ``close`` belong to the edge's loop; ``on_blocked`` is called on a watchdog's
    thread."""

    def __init__(self, on_blocked: OnBlocked, config: NativeConfig | None = None) -> None:
        self._config = config or NativeConfig()
        self.users = NativeRuntime(self._config, on_blocked=on_blocked)

    def start(self) -> None:
        self.users.start()

    async def close(self) -> None:
        """Cancel running programs and end the thread. The grace time is for programs that can
        receive a cancellation: a loop that is known to be blocked is not waited for."""
        limit_s = 2 * self._config.grace_s + CLOSE_MARGIN_S
        if not await _close_within(self.users, limit_s):
            logger.error(
                "the loop of users' programs is blocked and its thread is left behind; it ends "
                "with the process"
            )


async def _close_within(runtime: NativeRuntime, limit_s: float) -> bool:
    """Close ``runtime``. False: it has not closed within ``limit_s``, or its loop is blocked.

    ``runtime.close()`` blocks. It runs on a plain thread: at exit Python would wait for an
    executor's."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        runtime.close()
        call_on(loop, closed.set)

    thread = threading.Thread(target=close, name="quire-close-programs", daemon=True)
    thread.start()
    end_s = loop.time() + limit_s
    while not await _is_set_within(closed, min(CLOSE_MARGIN_S, end_s - loop.time())):
        if runtime.is_blocked or loop.time() >= end_s:
            return False
    thread.join()
    return True


async def _is_set_within(event: asyncio.Event, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            return await event.wait()
    except TimeoutError:
        return event.is_set()
