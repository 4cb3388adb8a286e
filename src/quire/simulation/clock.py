"""A clock that moves only when it is set."""

from __future__ import annotations


class VirtualClock:
    """A ``Clock`` in virtual seconds. Starts at ``start_s`` and never goes back."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass (0 or more)."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._now_s += seconds

    def advance_to(self, time_s: float) -> None:
        """Move to ``time_s`` unless it is already past."""
        self._now_s = max(self._now_s, time_s)
