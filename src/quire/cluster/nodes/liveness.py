"""Whether a node is alive, by its answers to health probes.

Owns the hysteresis: one lost probe is no death, one answer no recovery. Pure bookkeeping: ``watch``
sends the probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeState = Literal["unknown", "not reached yet", "ready", "busy", "dead"]
"""``unknown``: not probed yet. ``not reached yet``: it has never answered; it may still start.
``busy``: alive, but loading or draining: it takes no new work. ``dead``: it has answered before,
and does so no more."""


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
        self._was_reached = False
        self.state: NodeState = "unknown"
        self.reason = "it has not been asked yet"

    @property
    def is_alive(self) -> bool:
        return self.state in ("ready", "busy")

    @property
    def is_gone(self) -> bool:
        """Whether the node is dead or was never reached: it receives no requests of clients."""
        return self.state in ("dead", "not reached yet")

    @property
    def absence(self) -> str:
        """Why a node that ``is_gone`` receives no requests."""
        what = "is lost" if self.state == "dead" else "is not reached yet"
        return f"{what}: {self.reason}"

    def answered(self, *, is_ready: bool, reason: str = "") -> None:
        """Note that a probe was answered."""
        self._num_failed = 0
        self._num_answered += 1
        self._was_reached = True
        if self.state == "dead" and self._num_answered < self._hysteresis.num_successes:
            return
        self.state = "ready" if is_ready else "busy"
        self.reason = "" if is_ready else reason

    def failed(self, reason: str) -> bool:
        """Note that a probe failed. Return ``is_gone``."""
        self._num_answered = 0
        self._num_failed += 1
        if not self._was_reached:
            self.state = "not reached yet"
        elif self._num_failed >= self._hysteresis.num_failures:
            self.state = "dead"
        if not self.is_alive:
            self.reason = reason
        return self.is_gone
