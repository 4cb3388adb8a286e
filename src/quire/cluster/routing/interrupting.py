"""Interrupts a strategy that blocks the router's loop.

A signal handler of Python runs on the main thread, between two steps of the code that runs there,
and sees its stack. If a strategy runs, the handler raises; if the router's own code runs, it does
nothing, so that nothing of the router is left half done. Owns the signal. One long operation of a C
library cannot be interrupted in this way.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from quire.core.errors import CapacityError

_NUMBER = signal.SIGURG
"""The default action of this signal is to do nothing."""

_OWN = str(Path(__file__).resolve().parents[1])


class StrategyInterrupted(CapacityError):
    """A strategy has kept the loop for too long, and was interrupted."""

    code = "strategy_interrupted"


class _Interrupt(BaseException):
    """Raised within a strategy. No ``except Exception`` of the strategy catches it."""


class Interrupter:
    """Interrupts strategies. ``name_of`` returns which strategy a file of code belongs to. Used on
    the main thread; if ``start`` is called on another thread, nothing is interrupted."""

    def __init__(self, name_of: Callable[[str], str | None]) -> None:
        self._name_of = name_of
        self._before: object = None
        self._thread_id: int | None = None

    def start(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(_NUMBER, self._handle)
            self._thread_id = threading.get_ident()

    def stop(self) -> None:
        if self._thread_id is not None:
            signal.signal(_NUMBER, self._before)  # type: ignore[arg-type]
            self._thread_id = None

    def __call__(self) -> None:
        """Interrupt the strategy that runs now, if one does. May be called from any thread."""
        if self._thread_id is not None:
            signal.pthread_kill(self._thread_id, _NUMBER)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and not _is_ours(frame) and self._runs_below(frame):
            raise _Interrupt

    def _runs_below(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if self._name_of(frame.f_code.co_filename) is not None:
                return True
            frame = frame.f_back
        return False


def _is_ours(frame: FrameType) -> bool:
    """Return whether ``frame`` is the router's own code, and not that of a shipped strategy."""
    name = frame.f_code.co_filename
    return name.startswith(_OWN) and not name.startswith(f"{_OWN}/strategies")


def was_interrupted(error: BaseException) -> bool:
    return isinstance(error, _Interrupt)
