"""The feed: what has changed about programs since a reader's last look.

Owns how a look finds the changes. Programs note them in the table's ``changes`` when they start,
call, become idle or end. For active programs each look compares a mark with that of the look
before. Idle ones change without a note when their memory is taken, or while a message in flight
still counts for them: while engines work, a look counts the pages of some of them. When no engine
works, 10,000 idle programs cost a look nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.control.engines.engine import ControlledEngine
from quire.control.engines.state import EngineState
from quire.control.programs.program import Program
from quire.control.programs.table import ProcessTable
from quire.control.rows import ProcessRow, ProcessRows, count_blocks
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.core.ids import EngineId, ProgramId, TenantId

MAX_ROWS = 1024
"""The most rows of one look; a reader that is further behind looks again."""

SWEPT_PAGES = 4096
"""Pages of idle programs that one look counts, about half a millisecond of it."""

_MAX_STALE = 64
"""How many rows are kept, besides twice the living programs, before those of ended ones are
dropped."""

_Shown = tuple[int, int, int, float, float]
"""Figures of a row: blocks on devices, hosts and disks, service and cost."""


@dataclass(frozen=True, slots=True)
class ProcessChanges:
    """What has changed up to ``number``, which the reader names in its next look.

    ``rows``: programs that have changed and live, in the order of their changes. ``ended``: those
    that have ended and may have been in an earlier answer. ``is_whole``: the reader must forget all
    it knows, as its number is too old or was not given by this controller. ``more``: further
    changes can be read at once.
    """

    number: int
    rows: tuple[ProcessRow, ...]
    ended: tuple[ProgramId, ...]
    is_whole: bool
    more: bool


class Feed:
    """Answers the looks of readers.

    ``places`` (all that queues are placed on) and ``schedulers`` are shared with the controller.
    ``max_rows``: the most rows of one look.
    """

    def __init__(
        self,
        table: ProcessTable,
        places: Mapping[EngineId, ControlledEngine],
        schedulers: Mapping[EngineId, EngineScheduler],
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._table = table
        self._changes = table.changes
        self._schedulers = schedulers
        self._rows = ProcessRows(places, schedulers)
        self._max_rows = max_rows
        self._marks: dict[ProgramId, tuple[object, ...]] = {}
        self._shown: dict[ProgramId, tuple[int, _Shown]] = {}
        self._to_sweep: list[ProgramId] = []
        self._moves: list[tuple[int, ...]] = []

    def all_rows(self, tenant: TenantId | None = None) -> tuple[ProcessRow, ...]:
        """The rows of the programs of ``tenant`` (None: of all), the oldest first."""
        found = [one for one in self._table.programs() if tenant in (None, one.tenant)]
        return tuple([self._rows.row(program) for program in found])

    def row(self, program: ProgramId) -> ProcessRow | None:
        """The row of one program; None if there is none."""
        found = self._table.get(program)
        return None if found is None else self._rows.row(found)

    def look(self, since: int, tenant: TenantId | None = None) -> ProcessChanges:
        """The changes of ``tenant``'s programs (None: of all) since number ``since``; 0 is before
        all changes."""
        self._compare_active()
        self._sweep_idle()
        changes = self._changes
        changes.give_numbers()
        is_whole = since == 0 or not changes.forgotten <= since <= changes.number
        since = 0 if is_whole else since
        found = [one for one in changes.since(since) if tenant in (None, one[1].tenant)]
        more = len(found) > self._max_rows
        found = found[: self._max_rows]
        number = found[-1][0] if more else changes.number
        return ProcessChanges(
            number=number,
            rows=tuple([self._row(number, program) for number, program in found]),
            ended=() if is_whole else self._ended(since, number, tenant),
            is_whole=is_whole,
            more=more,
        )

    def _row(self, number: int, program: Program) -> ProcessRow:
        row = self._rows.row(program)
        blocks = row.num_device_blocks, row.num_host_blocks, row.num_disk_blocks
        shown = (*blocks, row.service_s, row.cost_s)
        known = self._shown.get(program.id)
        if known is not None and known[0] == number and known[1] != shown:
            self._changes.touch(program)  # other readers got this change with another row
        self._shown[program.id] = (number, shown)
        return row

    def _ended(self, since: int, upto: int, tenant: TenantId | None) -> tuple[ProgramId, ...]:
        ends = self._changes.ended_since(since)
        return tuple(
            end.program for end in ends if end.number <= upto and tenant in (None, end.tenant)
        )

    def _compare_active(self) -> None:
        marks = {program.id: self._rows.mark(program) for program in self._table.active.values()}
        for program, mark in marks.items():
            if self._marks.get(program) != mark:
                self._changes.touch(self._table.active[program])
        self._marks = marks

    def _sweep_idle(self) -> None:
        """Touch idle programs whose last row is out of date. Each look examines some of them; after
        an engine has done anything, all are examined once."""
        moves = [_moves(one.engine) for one in self._schedulers.values()]
        if not self._to_sweep and moves != self._moves:
            self._moves = moves
            self._to_sweep = list(self._table.idle)
        if len(self._shown) > 2 * len(self._table) + _MAX_STALE:
            self._shown = {
                program: shown
                for program, shown in self._shown.items()
                if self._table.get(program) is not None
            }
        num_left = SWEPT_PAGES
        while self._to_sweep and num_left > 0:
            program = self._table.idle.get(self._to_sweep.pop())
            if program is not None and program.id in self._shown:
                num_left -= len(program.pages) + 1
                now = (*count_blocks(program), program.figures.service_s, program.cost_s)
                if now != self._shown[program.id][1]:
                    self._changes.touch(program)


def _moves(engine: EngineState) -> tuple[int, ...]:
    """A value that differs after a message was sent or has run, or a block was taken or given
    back."""
    device, host, disk = engine.memory.device, engine.memory.host, engine.memory.disk_tier.pool
    return (
        engine.next_step,
        len(engine.in_flight),
        device.num_freed,
        device.num_taken,
        host.num_freed,
        host.num_taken,
        disk.num_freed,
        disk.num_taken,
    )
