"""Puts the scheduler of one engine together.

Owns the order in which its parts are made; each part alone knows what it decides.
"""

from __future__ import annotations

from quire.control.commands.flow import Flow
from quire.control.commands.host_commands import HostCommands
from quire.control.engines.state import EngineState
from quire.control.foundation import Foundation
from quire.control.scheduler.completion import ResultReader
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.control.scheduler.lowering.seeds import SeedSource
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.planner import MessagePlanner
from quire.control.scheduler.tiering.tiering import Tiering
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.waiting.admission import Admission


class EngineAssembly:
    """Makes a scheduler for each engine that comes up; ``seeds`` are shared by all engines."""

    def __init__(
        self, foundation: Foundation, flow: Flow, host: HostCommands, seeds: SeedSource
    ) -> None:
        self._foundation = foundation
        self._flow = flow
        self._host = host
        self._seeds = seeds

    def scheduler(self, engine: EngineState) -> EngineScheduler:
        """Make the scheduler of ``engine``, which has none yet."""
        base, config = self._foundation, self._foundation.config
        admission = Admission(engine, base.table, config.output_share)
        chunk_time = ChunkTime(config.chunk_steps)
        gate = ProgramGate(engine, config.pausing, admission, chunk_time, base.time)
        planner = self._planner(engine, admission, gate)
        return EngineScheduler(
            engine,
            config,
            base.dispatch,
            planner,
            self._completion(engine, planner, admission, gate),
            chunk_time,
            Tiering(engine, gate, chunk_time, base.time),
            self._flow,
            base.outbox,
            base.time,
            base.tracer,
        )

    def _planner(
        self, engine: EngineState, admission: Admission, gate: ProgramGate
    ) -> MessagePlanner:
        base = self._foundation
        return MessagePlanner(
            engine,
            base.table,
            self._flow,
            self._host,
            FairShare(base.weights),
            base.ranking,
            self._seeds,
            admission,
            gate,
            base.time,
        )

    def _completion(
        self, engine: EngineState, planner: MessagePlanner, admission: Admission, gate: ProgramGate
    ) -> ResultReader:
        base = self._foundation
        return ResultReader(
            engine,
            planner.restorer,
            self._flow,
            base.ranking,
            admission,
            gate,
            planner.exchange,
            base.outbox,
            base.time,
        )
