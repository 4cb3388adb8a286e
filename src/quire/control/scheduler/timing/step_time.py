"""Computes how many decode steps fit into one message's time.

Owns a moving average of the engine's own time for one decode step.
"""

from __future__ import annotations

_SMOOTHING = 0.2


class DecodeStepTime:
    """``num_steps`` keeps a message near ``quantum_s``; one step until a step was measured."""

    def __init__(self, quantum_s: float, max_steps: int) -> None:
        self._quantum_s = quantum_s
        self._max_steps = max(1, max_steps)
        self.step_s: float | None = None

    def observe(self, elapsed_s: float, num_steps: int) -> None:
        """Note that a message of decode rows alone took ``elapsed_s``; its longest row got
        ``num_steps``."""
        if num_steps < 1 or elapsed_s < 0:
            return
        step_s = elapsed_s / num_steps
        if self.step_s is None:
            self.step_s = step_s
        else:
            self.step_s += _SMOOTHING * (step_s - self.step_s)

    def num_steps(self) -> int:
        if self.step_s is None:
            return 1
        if self.step_s * self._max_steps <= self._quantum_s:
            return self._max_steps
        return max(1, int(self._quantum_s / self.step_s))
