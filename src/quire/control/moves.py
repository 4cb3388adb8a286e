"""Moves programs from an engine to another one of the same model.

Owns what happens to queues, pages and commands as they move. ``placement.stay`` knows what binds a
program to an engine, ``placement.deployments`` chooses the new one, and ``engine_life`` knows when
an engine is lost. No bytes move: the new engine computes pages again when they are used, or has
them in its prefix index already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.control.commands.flow import Flow
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.exports import ExportTable
from quire.control.memory.relocation import relocate
from quire.control.outbox import Outbox
from quire.control.placement.deployments import Deployments
from quire.control.placement.stay import EngineStay, stays_on
from quire.control.programs.call_notes import forget_messages
from quire.control.programs.program import CommandQueue
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.core.commands import Command
from quire.core.ids import EngineId


class ProgramMover:
    """Moves all that a program has on an engine, or nothing. ``engines`` and ``schedulers`` are
    shared with the controller."""

    def __init__(
        self,
        engines: Mapping[EngineId, EngineState],
        schedulers: Mapping[EngineId, EngineScheduler],
        deployments: Deployments,
        exports: ExportTable,
        table: ProcessTable,
        flow: Flow,
        outbox: Outbox,
        time: EventTime,
    ) -> None:
        self._engines = engines
        self._schedulers = schedulers
        self._deployments = deployments
        self._exports = exports
        self._table = table
        self._flow = flow
        self._outbox = outbox
        self._time = time

    def can_leave(self, engine: EngineState) -> bool:
        """Whether another engine can take over programs of ``engine``."""
        return bool(self._deployments.refuges(engine))

    def leave(self, engine: EngineState) -> None:
        """Move the programs that have commands on ``engine``, which is down, and are not bound to
        it."""
        if self.can_leave(engine):
            for stay in stays_on(self._table.active.values(), engine.id):
                self._move_away(stay, engine)

    def follow(self, queue: CommandQueue, commands: Sequence[Command]) -> None:
        """Move the program of ``queue``, for which ``commands`` arrive, as ``leave`` does, if its
        engine is down."""
        engine = self._engines[queue.engine]
        if not engine.is_up and self.can_leave(engine):
            self._move_away(EngineStay(queue.program, engine.id), engine, queue, commands)

    def join(self, engine: EngineState) -> None:
        """Let ``engine``, which is up, take over from others of its model that are down. Programs
        that wait and have not begun elsewhere are placed again."""
        for other in self._deployments.others(engine):
            if not other.is_up:
                self.leave(other)
            elif engine in self._deployments.refuges(other):
                self._place_again(other)

    def _place_again(self, engine: EngineState) -> None:
        for queue in list(engine.ready):
            if queue not in engine.ready:
                continue  # it has moved with another queue of its program
            stay = EngineStay(queue.program, engine.id)
            if not stay.is_fresh or stay.is_bound(self._exports):
                continue
            engine.ready.discard(queue)  # the balancer must not count it as a call that waits here
            candidates = [engine, *self._deployments.refuges(engine)]
            chosen = self._deployments.balance(queue, _waiting(queue), candidates)
            engine.ready.add(queue)
            if chosen is not engine:
                self._move(stay, engine, chosen)

    def _move_away(
        self,
        stay: EngineStay,
        engine: EngineState,
        queue: CommandQueue | None = None,
        commands: Sequence[Command] = (),
    ) -> None:
        """Move ``stay``, unless it is bound, to the engine that the balancer chooses for ``queue``
        with its ``commands``, or for its first queue that has some."""
        if stay.is_bound(self._exports):
            return
        if queue is None:
            queue = next(one for one in stay.queues if one.entries)
        wanted = [*_waiting(queue), *commands]
        target = self._deployments.balance(queue, wanted, self._deployments.refuges(engine))
        self._move(stay, engine, target)

    def _move(self, stay: EngineStay, source: EngineState, target: EngineState) -> None:
        if not _has_embeds(target, stay.num_bound_embeds):
            return
        for queue in stay.queues:
            self._withdraw(queue, source)
        for run in stay.begun:
            source.unfinished.pop(run.entry, None)
        relocate(stay.pages, stay.fills, source.memory, target.memory, target.id)
        for embed in stay.embeds:
            if embed.slot is not None:
                source.embeds.free(embed.slot)
                embed.slot = target.embeds.take()
            embed.engine = target.id
        self._note_holder(stay)
        for queue in stay.queues:
            queue.placed_on = target.id
            self._outbox.placed(queue.program.id, queue.id, target.id)
        planner = self._schedulers[target.id].planner
        for run in stay.begun:
            run.entry.ready_s = self._time.now_s
            forget_messages(run.entry)
            planner.take_over(run)
        for queue in stay.queues:
            self._flow.advance(queue)

    def _withdraw(self, queue: CommandQueue, engine: EngineState) -> None:
        scheduler = self._schedulers[engine.id]
        engine.wake()
        scheduler.planner.withdraw(queue)
        scheduler.anticipation.forget(queue)
        engine.stalled.pop(queue, None)
        engine.starved.pop(queue, None)
        engine.tables.drop_queue(queue.serial, engine.operations)

    def _note_holder(self, stay: EngineStay) -> None:
        """Note that the program's pages may refer to contents of the new engine's prefix index."""
        if any(page.content is not None for page in stay.pages):
            self._table.note_active_holder(stay.program)


def _waiting(queue: CommandQueue) -> list[Command]:
    return [entry.command for entry in queue.entries]


def _has_embeds(engine: EngineState, num_embeds: int) -> bool:
    """Whether its pool has ``num_embeds`` free, besides the reserve."""
    pool = engine.embeds
    return not num_embeds or pool.num_free - num_embeds >= pool.num_reserved
