"""Detects an event loop that is blocked, and names the program that blocks it.

Owns the probing of one loop from a separate thread. It only reports: a native program is trusted,
and Python cannot stop it from outside.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from quire.core.interfaces import Clock

logger = logging.getLogger(__name__)


_RUNNER = str(Path(__file__).with_name("execution.py"))
"""The module whose frames stand directly below those of a program's main function."""


@dataclass(frozen=True, slots=True)
class BlockedLoop:
    """``program``: the running program, from ``current_program``; ``stack``: its stack, as text."""

    program: str | None
    stack: str
    threshold_s: float


Wait = Callable[[threading.Event, float | None], bool]
"""Waits for an event for some seconds (``None``: without limit); returns whether it is set."""


def program_stack(frame: FrameType) -> str:
    """The stack above the node's own frames, as text; the whole stack if it has none of these, as
    in a task that the program has created."""
    frames = traceback.extract_stack(frame)
    below = max((i for i, one in enumerate(frames, 1) if one.filename == _RUNNER), default=0)
    return "".join(traceback.format_list(frames[below:] or frames))


def _wait(event: threading.Event, timeout_s: float | None) -> bool:
    return event.wait(timeout_s)


class Watchdog:
    """Probes a loop: posts a callback and waits for it, at most ``threshold_s``.

    ``post``             runs a callback on the loop (``loop.call_soon_threadsafe``).
    ``current_program``  the program that the loop runs now; called on the watchdog's thread.
    ``on_blocked``       called once each time that the loop is found blocked.
    """

    def __init__(
        self,
        *,
        post: Callable[[Callable[[], None]], object],
        thread_id: int,
        current_program: Callable[[], str | None],
        on_blocked: Callable[[BlockedLoop], None],
        clock: Clock,
        threshold_s: float = 1.0,
        wait: Wait = _wait,
    ) -> None:
        self._post = post
        self._thread_id = thread_id
        self._current_program = current_program
        self._on_blocked = on_blocked
        self._clock = clock
        self._threshold_s = threshold_s
        self._wait = wait
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_blocked = False
        """Whether the last probe was not answered in time, and is not answered yet. For any
        thread."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="quire-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop probing. Blocks until the loop has answered a pending probe."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.probe()
            self._wait(self._stopped, self._threshold_s)

    def probe(self) -> bool:
        """Probe once: wait for the loop's answer, and return whether it came in time."""
        answered = threading.Event()
        asked_s = self._clock.now_s()
        self._post(answered.set)
        if self._wait(answered, self._threshold_s):
            return True
        self.is_blocked = True
        self._report()
        self._wait(answered, None)
        self.is_blocked = False
        logger.warning("the program loop was blocked for %.3f s", self._clock.now_s() - asked_s)
        return False

    def _report(self) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = program_stack(frame) if frame is not None else ""
        blocked = BlockedLoop(self._current_program(), stack, self._threshold_s)
        logger.error(
            "program %s has blocked the program loop for %s s: await something, or move the work "
            "to a thread with asyncio.to_thread\n%s",
            blocked.program or "(none)",
            blocked.threshold_s,
            blocked.stack,
        )
        self._on_blocked(blocked)
