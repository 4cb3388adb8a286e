"""The times at which sessions are to be checked, because they may have been idle for too long.

Owns the order of these times. Must not know what a session is, nor whether it is idle: a session
that was used since its time was set gets a later one at the check.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from quire.core.ids import ProgramId


class SessionExpiry:
    """One time for each session, the earliest first. Each session may have its own idle time, so
    the order of use is not the order of ends."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, ProgramId]] = []
        self._due_s: dict[ProgramId, float] = {}

    def __len__(self) -> int:
        """Number of sessions that have a time."""
        return len(self._due_s)

    @property
    def next_s(self) -> float | None:
        """The earliest time, or ``None``."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def set(self, program: ProgramId, due_s: float) -> None:
        """Check ``program`` at ``due_s`` and not before."""
        self._due_s[program] = due_s
        heapq.heappush(self._heap, (due_s, program))
        if len(self._heap) > 2 * len(self._due_s) + 64:  # most sessions end long before their time
            self._heap = [(due_s, program) for program, due_s in self._due_s.items()]
            heapq.heapify(self._heap)

    def discard(self, program: ProgramId) -> None:
        self._due_s.pop(program, None)

    def take_due(self, now_s: float) -> Iterator[ProgramId]:
        """The sessions whose time has come; each loses its time."""
        while (next_s := self.next_s) is not None and next_s <= now_s:
            _, program = heapq.heappop(self._heap)
            del self._due_s[program]
            yield program

    def _drop_stale(self) -> None:
        while self._heap and self._due_s.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
