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
        table, outbox, time = base.table, base.outbox, base.time
        self.holdings = Holdings(engines.engines)
        self.host = host = HostCommands(engines.engines, self.holdings)
        self.timers = Timers(table, host.exports, host.leases)
        deployments = Deployments(create_balancer(base.config.balancer), host.exports)
        self.flow = flow = Flow(
            table, engines.places, self.holdings, host, outbox, time, base.tracer
        )
        self.encoding = Encoding(
            engines.places, table, flow, outbox, base.ranking, base.weights, time, base.tracer
        )
        moves = ProgramMover(
            engines.engines,
            engines.schedulers,
            deployments,
            host.exports,
            table,
            flow,
            outbox,
            time,
        )
        assembly = EngineAssembly(base, flow, host, SeedSource(seed))
        self.life = EngineLife(base, engines, assembly, deployments, moves, flow, host)
        self.calls = CallHandler(
            table,
            engines.engines,
            engines.schedulers,
            deployments,
            moves,
            flow,
            self.holdings,
            self.encoding,
            base.ranking,
            outbox,
            time,
        )
        self.bringing = Bringing(
            engines.engines, host.far_imports, host.exports, host.leases, self.calls, flow
        )
        self.feed = Feed(table, engines.places, engines.schedulers)
