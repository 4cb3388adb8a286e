"""Decides when a message is sent (Pie 5.2 and 6.1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Send whatever is ready as soon as the engine is idle.

    Work-conserving: a busy engine gathers work, an idle one gets all of it at once.
    """

    name: str = "adaptive"
    max_commands: int | None = None
    is_adaptive: bool = True

    def ready_at_s(self, num_ready: int, oldest_ready_s: float, now_s: float) -> float | None:
        return now_s
