"""Notices a strategy that blocks the router's event loop, and names it.

Owns a thread that probes the loop. It only reports: Python cannot stop such code from outside.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)

Wait = Callable[[threading.Event, float | None], bool]
"""Waits for an event for that many seconds (``None``: without limit); returns whether it is set."""


def _wait(event: threading.Event, timeout_s: float | None) -> bool:
    return event.wait(timeout_s)


class LoopGuard:
    """``post`` runs a callback on the loop, whose thread is ``thread_id``. ``name_of`` tells which
    strategy a file of code belongs to, on the guard's thread."""

    def __init__(
        self,
        *,
        post: Callable[[Callable[[], None]], object],
        thread_id: int,
        name_of: Callable[[str], str | None],
        max_block_s: float,
        wait: Wait = _wait,
    ) -> None:
        self._post = post
        self._thread_id = thread_id
        self._name_of = name_of
        self._max_block_s = max_block_s
        self._wait = wait
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_blocked: str | None = None
        """The strategy that has blocked the loop last."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="quire-loop-guard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop probing; the thread ends by itself."""
        self._stopped.set()

    def probe(self) -> bool:
        """Whether the loop answers in time. If not, returns after it has answered."""
        answered = threading.Event()
        try:
            self._post(answered.set)
        except RuntimeError:  # the loop is closed
            self._stopped.set()
            return True
        if self._wait(answered, self._max_block_s):
            return True
        self._report(sys._current_frames().get(self._thread_id))
        self._wait(answered, None)
        return False

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.probe()
            self._wait(self._stopped, self._max_block_s)

    def _report(self, frame: FrameType | None) -> None:
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
