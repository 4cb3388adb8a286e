"""The time at which the controller must be called again without another event.

Owns the heap of programs' idle times and the last timer that was requested.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from quire.control.memory.exports import ExportTable
from quire.control.memory.leases import LeaseTable
from quire.control.programs.program import Program
from quire.control.programs.table import ProcessTable
from quire.core.ids import ProgramId


class Timers:
    """Combines dispatch times, the expiries of exports and leases, and programs' idle times."""

    def __init__(self, table: ProcessTable, exports: ExportTable, leases: LeaseTable) -> None:
        self._table = table
        self._exports = exports
        self._leases = leases
        self._idle: list[tuple[float, ProgramId]] = []
        self._asked_s: float | None = None

    def watch(self, program: Program) -> None:
        """Watch ``program`` if it has an idle time to live."""
        if program.idle_ttl_s is not None:
            heapq.heappush(self._idle, (program.idle_since_s + program.idle_ttl_s, program.id))

    def idle_too_long(self, now_s: float) -> Iterator[Program]:
        """Programs whose idle time is over. Programs that were active meanwhile are watched
        again."""
        while self._idle and self._idle[0][0] <= now_s:
            _, program_id = heapq.heappop(self._idle)
            program = self._table.get(program_id)
            if program is None or program.idle_ttl_s is None:
                continue
            if program.entries:
                heapq.heappush(self._idle, (now_s + program.idle_ttl_s, program_id))
            elif program.idle_since_s + program.idle_ttl_s <= now_s:
                yield program
            else:
                self.watch(program)

    def fired(self) -> None:
        """A tick has arrived: the requested timer is used up, on time or not."""
        self._asked_s = None

    def next_timer_s(self, dispatch_s: Iterable[float]) -> float | None:
        """The time for which to request a tick; None if there is none, or if it is the one
        requested last."""
        candidates = list(dispatch_s)
        expiries = (self._exports.next_expiry_s(), self._leases.next_expiry_s())
        candidates += [expiry_s for expiry_s in expiries if expiry_s is not None]
        if self._idle:
            candidates.append(self._idle[0][0])
        if not candidates:
            return None
        at_s = min(candidates)
        if at_s == self._asked_s:
            return None
        self._asked_s = at_s
        return at_s
