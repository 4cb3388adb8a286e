"""Puts control together: each part is made of those above it.

Owns the wiring. The controller owns the handling of events; each part owns its decisions.
"""

from __future__ import annotations

from quire.control.bringing import Bringing
from quire.control.calls import CallHandler
from quire.control.commands.flow import Flow
from quire.control.commands.holdings import Holdings
from quire.control.commands.host_commands import HostCommands
from quire.control.encoding import Encoding
from quire.control.engine_assembly import EngineAssembly
from quire.control.engine_life import EngineLife
from quire.control.feed import Feed
from quire.control.foundation import EngineTable, Foundation
from quire.control.moves import ProgramMover
from quire.control.placement.balancers import create_balancer
from quire.control.placement.deployments import Deployments
from quire.control.scheduler.lowering.seeds import SeedSource
from quire.control.timers import Timers


class Parts:
    """The parts on ``base`` and ``engines``, from what programs hold up to what they ask for."""

    def __init__(self, base: Foundation, engines: EngineTable, seed: int) -> None:
        self.holdings = Holdings(engines.engines)
        self.host = HostCommands(engines.engines, self.holdings)
        self.timers = Timers(base.table, self.host.exports, self.host.leases)
        self.deployments = Deployments(create_balancer(base.config.balancer), self.host.exports)
        self.flow = self._flow(base, engines)
        self.encoding = self._encoding(base, engines)
        self.moves = self._moves(base, engines)
        self.life = self._life(base, engines, SeedSource(seed))
        self.calls = self._calls(base, engines)
        self.bringing = self._bringing(engines)
        self.feed = Feed(base.table, engines.places, engines.schedulers)

    def _flow(self, base: Foundation, engines: EngineTable) -> Flow:
        return Flow(
            base.table,
            engines.places,
            self.holdings,
            self.host,
            base.outbox,
            base.time,
            base.tracer,
        )

    def _encoding(self, base: Foundation, engines: EngineTable) -> Encoding:
        return Encoding(
            engines.places,
            base.table,
            self.flow,
            base.outbox,
            base.ranking,
            base.weights,
            base.time,
            base.tracer,
        )

    def _moves(self, base: Foundation, engines: EngineTable) -> ProgramMover:
        return ProgramMover(
            engines.engines,
            engines.schedulers,
            self.deployments,
            self.host.exports,
            base.table,
            self.flow,
            base.outbox,
            base.time,
        )

    def _life(self, base: Foundation, engines: EngineTable, seeds: SeedSource) -> EngineLife:
        return EngineLife(
            base,
            engines,
            EngineAssembly(base, self.flow, self.host, seeds),
            self.deployments,
            self.moves,
            self.flow,
            self.host,
        )

    def _calls(self, base: Foundation, engines: EngineTable) -> CallHandler:
        return CallHandler(
            base.table,
            engines.engines,
            engines.schedulers,
            self.deployments,
            self.moves,
            self.flow,
            self.holdings,
            self.encoding,
            base.ranking,
            base.outbox,
            base.time,
        )

    def _bringing(self, engines: EngineTable) -> Bringing:
        return Bringing(
            engines.engines,
            self.host.far_imports,
            self.host.exports,
            self.host.leases,
            self.calls,
            self.flow,
        )
