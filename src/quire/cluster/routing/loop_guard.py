"""Notices a strategy that blocks the router's event loop, names it, and has it interrupted.

Owns a thread that probes the loop, and how long it may be blocked. Must not know how code is
interrupted.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)

INTERRUPT_AFTER = 4

Wait = Callable[[threading.Event, float | None], bool]
"""Waits for an event for that many seconds (``None``: without limit); returns whether it is set."""


def _wait(event: threading.Event, timeout_s: float | None) -> bool:
    return event.wait(timeout_s)


class LoopGuard:
    """Guards one loop, whose thread is ``thread_id``; ``post`` runs a callback on it. ``name_of``
    returns, on the guard's thread, which strategy a file of code belongs to. A block is reported
    after ``max_block_s``; a strategy that blocks is interrupted when it has lasted
    ``INTERRUPT_AFTER`` times that, and again each ``max_block_s`` until the loop answers."""

    def __init__(
        self,
        *,
        post: Callable[[Callable[[], None]], object],
        thread_id: int,
        name_of: Callable[[str], str | None],
        max_block_s: float,
        interrupt: Callable[[], object] = lambda: None,
        wait: Wait = _wait,
    ) -> None:
        self._post = post
        self._thread_id = thread_id
        self._name_of = name_of
        self._max_block_s = max_block_s
        self._interrupt = interrupt
        self._wait = wait
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_blocked: str | None = None
        """The name of the last strategy that has blocked the loop."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="quire-loop-guard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop probing; the thread ends by itself."""
        self._stopped.set()

    def probe(self) -> bool:
        """Return whether the loop answers in time. If it does not, return after it has answered."""
        answered = threading.Event()
        try:
            self._post(answered.set)
        except RuntimeError:  # the loop is closed
            self._stopped.set()
            return True
        if self._wait(answered, self._max_block_s):
            return True
        is_strategy = self._report(sys._current_frames().get(self._thread_id))
        if is_strategy and not self._wait(answered, (INTERRUPT_AFTER - 1) * self._max_block_s):
            self._interrupt()
            while not self._wait(answered, self._max_block_s):
                self._interrupt()
        self._wait(answered, None)
        return False

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.probe()
            self._wait(self._stopped, self._max_block_s)

    def _report(self, frame: FrameType | None) -> bool:
        """Log the block; return whether a strategy causes it."""
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        name, inner = None, frame
        while inner is not None and name is None:
            name = self._name_of(inner.f_code.co_filename)
            inner = inner.f_back
        self.last_blocked = name or self.last_blocked
        logger.log(
            logging.ERROR if name else logging.WARNING,
            "%s has blocked the router for %g s, and with it every request: await something, or "
            "move the work to a thread with asyncio.to_thread\n%s",
            f"strategy {name}" if name else "something other than a strategy",
            self._max_block_s,
            stack,
        )
        return name is not None
