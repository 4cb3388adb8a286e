"""Whether a node is alive, by its answers to health probes.

Owns the hysteresis: one lost probe is no death, one answer no recovery. Pure bookkeeping: ``watch``
sends the probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeState = Literal["unknown", "ready", "busy", "dead"]
"""``unknown``: not asked yet. ``busy``: alive, but loading or draining: it takes no new work."""


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """When the state changes: ``num_failures`` failed probes in a row make a node dead,
    ``num_successes`` successful ones in a row make a dead node alive."""

    num_failures: int = 3
    num_successes: int = 2


class Liveness:
    """The state of one node; ``reason`` says why it is not ready."""

    def __init__(self, hysteresis: Hysteresis | None = None) -> None:
        self._hysteresis = hysteresis or Hysteresis()
        self._num_failed = 0
        self._num_answered = 0
        self.state: NodeState = "unknown"
        self.reason = "it has not been asked yet"

    @property
    def is_alive(self) -> bool:
        return self.state in ("ready", "busy")

    def answered(self, *, is_ready: bool, reason: str = "") -> None:
        """Note that a probe was answered."""
        self._num_failed = 0
        self._num_answered += 1
        if self.state == "dead" and self._num_answered < self._hysteresis.num_successes:
            return
        self.state = "ready" if is_ready else "busy"
        self.reason = "" if is_ready else reason

    def failed(self, reason: str) -> bool:
        """Note that a probe failed. Return whether the node is dead."""
        self._num_answered = 0
        self._num_failed += 1
        if self.state == "unknown" or self._num_failed >= self._hysteresis.num_failures:
            self.state = "dead"
        if not self.is_alive:
            self.reason = reason
        return self.state == "dead"
