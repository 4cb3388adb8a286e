"""Handles engines that come up and go down.

Owns the wiring of one engine's scheduler, and what happens to work and pages when the engine's
memory is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from quire.control.commands.flow import Flow
from quire.control.commands.host_commands import HostCommands
from quire.control.engines.awake import Awake
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.engine import ControlledEngine
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.chain_heads import ChainHeads
from quire.control.moves import Moves
from quire.control.outbox import Outbox
from quire.control.placement.deployments import Deployments
from quire.control.programs.program import CommandQueue, Entry
from quire.control.programs.states import CommandState
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.completion import Completion
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.control.scheduler.lowering.seeds import SeedSource
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import Ranking
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.planner import MessagePlanner
from quire.control.scheduler.tiering.tiering import Tiering
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.waiting.admission import Admission
from quire.control.tracing import Tracer
from quire.core.engine_info import EngineInfo
from quire.core.errors import EngineLost, ErrorRecord
from quire.core.events import EngineDown, EngineUp
from quire.core.ids import EngineId, TenantId
from quire.core.policy import DispatchPolicy
from quire.core.scheduler_config import SchedulerConfig

MAX_LOSSES = 2
"""A command that was in flight on so many engines as they were lost fails: it may be what ends
them, and would take one replica after the other."""


@dataclass(slots=True)
class EngineLife:
    """Handles ``EngineUp`` and ``EngineDown`` of engines with memory. ``engines``, ``places``
    (everything on which queues can be placed), ``schedulers`` (``by_number`` in the order in which
    they came up first) and ``awake`` are shared with the controller; ``heads`` with all engines."""

    config: SchedulerConfig
    engines: dict[EngineId, EngineState]
    places: dict[EngineId, ControlledEngine]
    deployments: Deployments
    moves: Moves
    schedulers: dict[EngineId, EngineScheduler]
    by_number: list[EngineScheduler]
    awake: Awake
    heads: ChainHeads
    table: ProcessTable
    flow: Flow
    host: HostCommands
    outbox: Outbox
    ranking: Ranking
    dispatch: DispatchPolicy
    weights: Mapping[TenantId, float]
    seeds: SeedSource
    time: EventTime
    tracer: Tracer

    def up(self, event: EngineUp, info: EngineInfo) -> None:
        """Register a new engine, or resume a known one with empty memory.

        Raises:
            ConfigError: its layer groups are not served, or a known engine has another pool or
                other adapters.
        """
        known = self.engines.get(event.engine)
        if known is not None:
            if known.is_up:
                self._lose(known, _replaced(event.engine))
            known.wake()
            self._end_outdated(known, known.restart(info))
            self._note_capacity()
            self._resume(known)
            self.moves.join(known)
            return
        number = len(self.schedulers)
        engine = EngineState(event.engine, event.model, info, number, self.awake, self.heads)
        admission = Admission(engine, self.table, self.config.output_share)
        chunk_time = ChunkTime(self.config.chunk_steps)
        gate = ProgramGate(engine, self.config.pausing, admission, chunk_time, self.time)
        planner = MessagePlanner(
            engine,
            self.table,
            self.flow,
            self.host,
            FairShare(self.weights),
            self.ranking,
            self.seeds,
            admission,
            gate,
            self.time,
        )
        completion = Completion(
            engine,
            planner.restorer,
            self.flow,
            self.ranking,
            admission,
            gate,
            planner.exchange,
            self.outbox,
            self.time,
        )
        self.engines[event.engine] = self.places[event.engine] = engine
        self.deployments.add(engine)
        scheduler = EngineScheduler(
            engine,
            self.config,
            self.dispatch,
            planner,
            completion,
            chunk_time,
            Tiering(engine, gate, chunk_time, self.time),
            self.flow,
            self.outbox,
            self.time,
            self.tracer,
        )
        self.schedulers[event.engine] = scheduler
        self.by_number.append(scheduler)
        self._note_capacity()
        self.moves.join(engine)

    def _note_capacity(self) -> None:
        up = [engine for engine in self.engines.values() if engine.is_up]
        self.ranking.note_capacity(sum(engine.info.pool.max_sequences for engine in up))

    def given_up(self, engine: EngineState, error: ErrorRecord) -> None:
        """It will not come up again, and other engines of its model go on: what waits for it moves
        there or fails, and no queue is placed on it any more."""
        if engine.is_up:
            self._lose(engine, error)
        engine.given_up = error
        self.deployments.remove(engine)
        self.moves.leave(engine)
        for program in self.table.programs():
            for queue in list(program.queues.values()):
                if queue.placed_on == engine.id:
                    self._fail_queue(queue, error)

    def _fail_queue(self, queue: CommandQueue, error: ErrorRecord) -> None:
        if queue.entries:
            self.flow.fail(queue.entries[0], error)
            self.flow.advance(queue)

    def down(self, event: EngineDown) -> None:
        """Another engine of the model takes over what it can. Else what was in flight fails, and
        other commands wait until the engine is up again."""
        engine = self.engines.get(event.engine)
        if engine is not None and engine.is_up:
            self._lose(engine, event.error)

    def _lose(self, engine: EngineState, error: ErrorRecord) -> None:
        engine.is_up = False
        engine.wake()
        self._note_capacity()
        saved = self._end_flight(engine, error)
        planner = self.schedulers[engine.id].planner
        planner.lose_flight()
        self._forget_forwards(engine, error)
        planner.restorer.forget_all()
        programs = self.table.programs()
        self.tracer.transfers_ended(engine, list(engine.memory.transfers), is_lost=True)
        planner.exchange.lose(error)
        engine.lose_memory(programs, self.host.exports)
        self.host.memory_lost(engine.id)
        for program in programs:
            if program.home_engines.get(engine.model) == engine.id:
                del program.home_engines[engine.model]
        self.moves.leave(engine)
        for entry in saved:
            if entry.state is CommandState.STARTED and entry.queue.engine == engine.id:
                self.flow.fail(entry, error)

    def _end_flight(self, engine: EngineState, error: ErrorRecord) -> list[Entry]:
        """End what was in flight but for decodes that may go on elsewhere; these."""
        can_leave, saved = self.moves.can_leave(engine), []
        for entry in engine.clear_flight():
            entry.num_losses += 1
            if entry.is_answered or entry.is_cancelled:
                self.flow.end_cancelled(entry, "its engine was lost")
            elif entry.state is CommandState.STARTED:
                may_move = isinstance(entry.run, DecodeRun) and entry.num_losses < MAX_LOSSES
                if can_leave and may_move and entry.error is None:
                    saved.append(entry)
                else:
                    self.flow.fail(entry, entry.error or error)
        for entry in saved:  # what stands before it in its queue may have failed since
            if entry.error is not None:
                self.flow.fail(entry, entry.error)
        return [entry for entry in saved if entry.error is None]

    def _forget_forwards(self, engine: EngineState, error: ErrorRecord) -> None:
        """Waiting forward commands read embeds that are lost: one that has not begun is examined
        again when the engine is up, one that has run in part fails."""
        for program in self.table.programs():
            for entry in list(program.entries.values()):
                run = entry.run
                if not isinstance(run, ForwardRun) or entry.queue.engine != engine.id:
                    continue
                if entry.state is CommandState.STARTED:
                    self.flow.fail(entry, entry.error or error)
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
                self.flow.fail(entry, error)

    def _resume(self, engine: EngineState) -> None:
        """Continue queues that waited for the engine."""
        for program in list(self.table.active.values()):
            for queue in list(program.queues.values()):
                if queue.placed_on == engine.id:
                    self.flow.advance(queue)


def _replaced(engine: EngineId) -> ErrorRecord:
    return EngineLost(f"engine {engine} restarted without having reported its end: retry").record()


def _outdated(engine: EngineState, index: int) -> ErrorRecord:
    adapter = None if index < 0 else engine.info.adapters[index]
    what = "the model" if adapter is None else f"adapter {adapter.name!r}"
    why = (adapter.problem if adapter is not None else "") or f"the weights of {what} have changed"
    return EngineLost(
        f"engine {engine.id} restarted during this command, and {why}: retry"
    ).record()
