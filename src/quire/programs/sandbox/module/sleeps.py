"""The sleeping commands of a compiled guest and their end times."""

from __future__ import annotations

import time

from quire.programs.sandbox.module.abi import GuestOp
from quire.programs.sandbox.module.events import RingEvent


class ModuleSleeps:
    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, command: int, duration_s: float) -> None:
        self._ends.append((time.monotonic() + duration_s, command))

    def take_due(self) -> list[RingEvent]:
        """The ends of sleeps that are over, earliest first."""
        now_s = time.monotonic()
        due = [entry for entry in self._ends if entry[0] <= now_s]
        if due:
            self._ends = [entry for entry in self._ends if entry[0] > now_s]
        return [RingEvent(GuestOp.SLEEP, command) for _, command in sorted(due)]

    def next_s(self) -> float | None:
        """Seconds until the next one ends; ``None`` if there is none."""
        if not self._ends:
            return None
        return max(0.0, min(self._ends)[0] - time.monotonic())
