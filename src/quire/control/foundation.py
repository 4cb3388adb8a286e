"""What all parts of control use: the configuration, time, the process table, the engines.

Owns nothing but these references; ``composition`` builds the parts on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.control.engines.awake import Awake
from quire.control.engines.engine import ControlledEngine
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.chain_heads import ChainHeads
from quire.control.outbox import Outbox
from quire.control.policies import create_policy
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.dispatch import Adaptive
from quire.control.scheduler.engine_scheduler import EngineScheduler
from quire.control.scheduler.order.ranking import Ranking
from quire.control.tracing import Tracer
from quire.core.config import TenantConfig
from quire.core.errors import ConfigError
from quire.core.ids import EngineId, TenantId
from quire.core.policy import DispatchPolicy, Policy
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import TraceListener


class Foundation:
    """The parts that need no engine. ``weights``: the tenants' shares.

    Raises:
        ConfigError: an unknown policy, or a weight that is not positive.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        tenants: Sequence[TenantConfig],
        policy: Policy | None,
        dispatch: DispatchPolicy | None,
        listener: TraceListener | None,
    ) -> None:
        for tenant in tenants:
            if tenant.weight <= 0:
                raise ConfigError(f"tenant {tenant.id} has weight {tenant.weight}: choose above 0")
        self.config = config
        self.policy = create_policy(config.policy, config.levels) if policy is None else policy
        self.dispatch: DispatchPolicy = dispatch or Adaptive()
        self.weights: Mapping[TenantId, float] = {tenant.id: tenant.weight for tenant in tenants}
        self.time = EventTime()
        self.outbox = Outbox()
        self.tracer = Tracer(listener, self.time)
        self.table = ProcessTable({tenant.id: tenant.totals for tenant in tenants})
        across_tenants = config.priority_scope == "node"
        self.ranking = Ranking(self.policy, self.time, across_tenants=across_tenants)


class EngineTable:
    """The engines that have come up, in that order.

    ``places``: everything on which queues can be placed, encoders too. ``schedulers`` and
    ``by_number``: of engines with memory, by id and in order. ``awake``: the engines that the next
    decision examines. ``heads``: which engines have the first pages of which prompts.
    """

    def __init__(self) -> None:
        self.engines: dict[EngineId, EngineState] = {}
        self.places: dict[EngineId, ControlledEngine] = {}
        self.schedulers: dict[EngineId, EngineScheduler] = {}
        self.by_number: list[EngineScheduler] = []
        self.awake = Awake()
        self.heads = ChainHeads()

    def add(self, scheduler: EngineScheduler) -> None:
        """Add an engine that is up for the first time."""
        engine = scheduler.engine
        self.engines[engine.id] = self.places[engine.id] = engine
        self.schedulers[engine.id] = scheduler
        self.by_number.append(scheduler)
