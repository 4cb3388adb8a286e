"""Small clusters in virtual time, with times that can be added up by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.cluster.routing.strategy import StrategySource
from quire.cluster.simulation import (
    ClusterFinding,
    ClusterStudy,
    Lengths,
    RequestLoad,
    examine_cluster,
)
from quire.cluster.simulation.virtual_fleet import VirtualFleet
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import EngineSpec
from quire.simulation.exchange import LinkCost
from quire.simulation.step_cost import StepCost

SECONDS = StepCost(message_s=0, step_s=1.0, row_s=0, prompt_token_s=0.25)
"""A step takes a second, and a token of a prompt a quarter."""

SPEC = EngineSpec(
    max_sequences=4, kv_tokens=4096, cost=SECONDS, page_size=16, num_layers=4, token_bytes=40
)
LINK = LinkCost(bytes_per_s=160.0)
"""Four tokens a second, as quick as they are computed."""

ONE_STEP = SchedulerConfig(max_steps_per_message=1)


def load(num_requests: int = 1, rate: float = 1.0, prompt: int = 33, **more: Any) -> RequestLoad:
    return RequestLoad(num_requests, rate, Lengths(prompt), Lengths(5), **more)


def study(requests: RequestLoad, **more: Any) -> ClusterStudy:
    made = ClusterStudy(
        requests, num_nodes=2, engine=SPEC, scheduler=ONE_STEP, link=LINK, call_s=0.0
    )
    return replace(made, **more)


def examine(made: ClusterStudy, strategy: str, **options: Any) -> ClusterFinding:
    """With all invariants checked after every event."""
    return examine_cluster(made, StrategySource(strategy, options=options), check=True)


def fleet(num_nodes: int = 2, spec: EngineSpec = SPEC, call_s: float = 0.0) -> VirtualFleet:
    return VirtualFleet(num_nodes, spec, ONE_STEP, LINK, call_s, check=True)
