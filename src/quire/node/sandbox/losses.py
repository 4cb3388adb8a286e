"""Decides when a lost sandbox process may be started again.

Owns the record of one process's losses. After the first few, each loss is followed by a pause that
doubles. A program that kills its process again and again therefore costs the machine little, and
other programs run in between. Never gives up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from quire.core.errors import CapacityError


@dataclass(frozen=True, slots=True)
class LossLimits:
    """``max_losses`` within ``window_s`` start the pauses: ``first_pause_s``, twice that after the
    next loss in the window, at most ``max_pause_s``."""

    max_losses: int = 5
    window_s: float = 60.0
    first_pause_s: float = 5.0
    max_pause_s: float = 40.0


class Losses:
    """The losses of one process. ``note`` belongs to one thread; the other methods are for any
    thread."""

    def __init__(self, limits: LossLimits | None = None) -> None:
        self._limits = limits or LossLimits()
        self._recent: deque[float] = deque()
        self._paused: tuple[float, str] | None = None
        self.count = 0
        """Losses since the start of the node."""

    def note(self, now_s: float, reason: str) -> None:
        limits, recent = self._limits, self._recent
        self.count += 1
        recent.append(now_s)
        while now_s - recent[0] > limits.window_s:
            recent.popleft()
        num_beyond = len(recent) - limits.max_losses
        if num_beyond < 0:
            return
        pause_s = min(limits.first_pause_s * 2.0**num_beyond, limits.max_pause_s)
        why = (
            f"it was lost {len(recent)} times within "
            f"{limits.window_s:g} s, the last time because {reason}"
        )
        self._paused = (now_s + pause_s, why)

    def problem(self, now_s: float) -> str | None:
        """Why no process may be started now, or ``None``."""
        if self._paused is None:
            return None
        until_s, why = self._paused
        left_s = until_s - now_s
        if left_s <= 0:
            return None
        return f"{why}: it is started again in {left_s:.0f} s at the soonest"

    def check(self, now_s: float) -> None:
        """Raise ``CapacityError`` during a pause."""
        problem = self.problem(now_s)
        if problem is not None:
            raise CapacityError(
                f"the sandbox takes no program now: {problem}; launch the program again then"
            )
