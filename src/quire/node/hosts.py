"""The two loop threads that programs run on: the node's own programs, and users'.

Built-in programs answer HTTP, so they must not share a loop with code that may forget to await.
Owns both runtimes and their end; a user's program that blocks its loop for ever cannot keep the
node from stopping.
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
"""Beyond the grace time, which a runtime may need twice: for its thread to end."""

OnBlocked = Callable[[BlockedLoop], None]


class ProgramHosts:
    """``built_in`` and ``users``. ``on_blocked`` is called on a watchdog's thread."""

    def __init__(self, on_blocked: OnBlocked, config: NativeConfig | None = None) -> None:
        self._config = config or NativeConfig()
        self.built_in = NativeRuntime(self._config)
        self.users = NativeRuntime(self._config, on_blocked=on_blocked)

    def start(self) -> None:
        self.built_in.start()
        self.users.start()

    async def close(self) -> None:
        """Cancel what still runs and end both threads."""
        limit_s = 2 * self._config.grace_s + CLOSE_MARGIN_S
        for name, runtime in (("users' programs", self.users), ("built-in", self.built_in)):
            if not await _close_within(runtime, limit_s):
                logger.error(
                    "the loop of %s is blocked and its thread is left behind; it ends with the "
                    "process",
                    name,
                )


async def _close_within(runtime: NativeRuntime, limit_s: float) -> bool:
    """``runtime.close()`` blocks; a thread of an executor would be waited for at exit."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def close() -> None:
        runtime.close()
        call_on(loop, closed.set)

    thread = threading.Thread(target=close, name="quire-close-programs", daemon=True)
    thread.start()
    try:
        async with asyncio.timeout(limit_s):
            await closed.wait()
    except TimeoutError:
        return False
    thread.join()
    return True


__all__ = ["OnBlocked", "ProgramHosts"]
