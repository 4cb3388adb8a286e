"""Handles engines that come up and go down.

Owns what happens to work and pages when an engine's memory is lost. ``engine_assembly`` puts its
scheduler together.
"""

from __future__ import annotations

from collections.abc import Collection

from quire.control.commands.flow import Flow
from quire.control.commands.host_commands import HostCommands
from quire.control.engine_assembly import EngineAssembly
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.loss import clear_flight, lose_memory, restart
from quire.control.engines.state import EngineState
from quire.control.foundation import EngineTable, Foundation
from quire.control.moves import ProgramMover
from quire.control.placement.deployments import Deployments
from quire.control.programs.program import CommandQueue, Entry
from quire.control.programs.states import CommandState
from quire.core.engine_info import EngineInfo
from quire.core.errors import EngineLost, ErrorRecord
from quire.core.events import EngineDown, EngineUp
from quire.core.ids import EngineId

MAX_LOSSES = 2
"""A command that was in flight on so many engines as they were lost fails: it may be the cause, and
would end one replica after the other."""


class EngineLife:
    """Handles ``EngineUp`` and ``EngineDown`` of engines with memory."""

    def __init__(
        self,
        base: Foundation,
        engines: EngineTable,
        assembly: EngineAssembly,
        deployments: Deployments,
        moves: ProgramMover,
        flow: Flow,
        host: HostCommands,
    ) -> None:
        self._table = base.table
        self._ranking = base.ranking
        self._tracer = base.tracer
        self._engines = engines
        self._assembly = assembly
        self._deployments = deployments
        self._moves = moves
        self._flow = flow
        self._host = host

    def up(self, event: EngineUp, info: EngineInfo) -> None:
        """Register a new engine, or resume a known one with empty memory.

        Raises:
            ConfigError: its layer groups are not served, or a known engine has another pool or
                other adapters.
        """
        known = self._engines.engines.get(event.engine)
        if known is not None:
            self._up_again(known, info)
            return
        table = self._engines
        number = len(table.by_number)
        engine = EngineState(event.engine, event.model, info, number, table.awake, table.heads)
        scheduler = self._assembly.scheduler(engine)
        table.add(scheduler)
        self._deployments.add(engine)
        self._note_capacity()
        self._moves.join(engine)

    def _up_again(self, engine: EngineState, info: EngineInfo) -> None:
        if engine.is_up:
            self._lose(engine, _replaced(engine.id))
        engine.wake()
        self._end_outdated(engine, restart(engine, info))
        self._note_capacity()
        self._resume(engine)
        self._moves.join(engine)

    def _note_capacity(self) -> None:
        up = [engine for engine in self._engines.engines.values() if engine.is_up]
        self._ranking.note_capacity(sum(engine.info.pool.max_sequences for engine in up))

    def given_up(self, engine: EngineState, error: ErrorRecord) -> None:
        """Note that ``engine`` will not come up again. What waits for it moves to other engines of
        its model or fails; no queue is placed on it any more."""
        if engine.is_up:
            self._lose(engine, error)
        engine.given_up = error
        self._deployments.remove(engine)
        self._moves.leave(engine)
        for program in self._table.programs():
            for queue in list(program.queues.values()):
                if queue.placed_on == engine.id:
                    self._fail_queue(queue, error)

    def _fail_queue(self, queue: CommandQueue, error: ErrorRecord) -> None:
        if queue.entries:
            self._flow.fail(queue.entries[0], error)
            self._flow.advance(queue)

    def down(self, event: EngineDown) -> None:
        """Handle the loss of an engine: another engine of its model takes over what it can.
        Otherwise what was in flight fails, and other commands wait until the engine is up again."""
        engine = self._engines.engines.get(event.engine)
        if engine is not None and engine.is_up:
            self._lose(engine, event.error)

    def _lose(self, engine: EngineState, error: ErrorRecord) -> None:
        engine.is_up = False
        engine.wake()
        self._note_capacity()
        saved = self._end_flight(engine, error)
        planner = self._engines.schedulers[engine.id].planner
        planner.lose_flight()
        self._forget_forwards(engine, error)
        planner.restorer.forget_all()
        programs = self._table.programs()
        self._tracer.transfers_ended(engine, list(engine.memory.transfers), is_lost=True)
        planner.exchange.lose(error)
        lose_memory(engine, programs, self._host.exports)
        self._host.memory_lost(engine.id)
        for program in programs:
            if program.home_engines.get(engine.model) == engine.id:
                del program.home_engines[engine.model]
        self._moves.leave(engine)
        for entry in saved:
            if entry.state is CommandState.STARTED and entry.queue.engine == engine.id:
                self._flow.fail(entry, error)

    def _end_flight(self, engine: EngineState, error: ErrorRecord) -> list[Entry]:
        """End what was in flight, except decodes that may go on elsewhere; return these."""
        can_leave, saved = self._moves.can_leave(engine), []
        for entry in clear_flight(engine):
            entry.num_losses += 1
            if entry.is_answered or entry.is_cancelled:
                self._flow.end_cancelled(entry, "its engine was lost")
            elif entry.state is CommandState.STARTED:
                may_move = isinstance(entry.run, DecodeRun) and entry.num_losses < MAX_LOSSES
                if can_leave and may_move and entry.error is None:
                    saved.append(entry)
                else:
                    self._flow.fail(entry, entry.error or error)
        for entry in saved:  # a command before it in its queue may have failed since
            if entry.error is not None:
                self._flow.fail(entry, entry.error)
        return [entry for entry in saved if entry.error is None]

    def _forget_forwards(self, engine: EngineState, error: ErrorRecord) -> None:
        """Fail or reset forward commands that read lost embeds: one that has not begun is examined
        again when the engine is up, one that has run in part fails."""
        for program in self._table.programs():
            for entry in list(program.entries.values()):
                run = entry.run
                if not isinstance(run, ForwardRun) or entry.queue.engine != engine.id:
                    continue
                if entry.state is CommandState.STARTED:
                    self._flow.fail(entry, entry.error or error)
                else:
                    run.unlock()
                    entry.run = None

    def _end_outdated(self, engine: EngineState, changed: Collection[int]) -> None:
        """Fail decodes that began with weights that have changed: the rest of their output would
        come from another model."""
        for entry in list(engine.unfinished):
            run = entry.run
            if isinstance(run, DecodeRun) and run.cursor.adapter in changed:
                error = entry.error or _outdated(engine, run.cursor.adapter)
                self._flow.fail(entry, error)

    def _resume(self, engine: EngineState) -> None:
        """Continue queues that waited for the engine."""
        for program in list(self._table.active.values()):
            for queue in list(program.queues.values()):
                if queue.placed_on == engine.id:
                    self._flow.advance(queue)


def _replaced(engine: EngineId) -> ErrorRecord:
    return EngineLost(f"engine {engine} restarted without having reported its end: retry").record()


def _outdated(engine: EngineState, index: int) -> ErrorRecord:
    adapter = None if index < 0 else engine.info.adapters[index]
    what = "the model" if adapter is None else f"adapter {adapter.name!r}"
    why = (adapter.problem if adapter is not None else "") or f"the weights of {what} have changed"
    return EngineLost(
        f"engine {engine.id} restarted during this command, and {why}: retry"
    ).record()
