"""The engines of a simulation: costs by name, capacity, figures that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import EngineSpec, costs_named
from quire.simulation.step_cost import StepCost
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads import CallPlan, ProgramPlan


def test_the_capacity_is_what_full_batches_reach() -> None:
    """Four places, a second a step, 10 tokens a program: 0.4 programs a second."""
    cost = StepCost(message_s=0.0, step_s=1.0, row_s=0.0, prompt_token_s=0.0)
    spec = EngineSpec(max_sequences=4, kv_tokens=4096, cost=cost)
    plans = [ProgramPlan("test", (CallPlan(4, 10),))] * 40
    assert spec.capacity(plans) == pytest.approx(0.4)
    scheduler = SchedulerConfig(max_steps_per_message=1)
    outcomes = SimulationRun(plans, [0.0] * 40, spec, scheduler).run().outcomes
    assert 40 / max(one.ended_s for one in outcomes) == pytest.approx(0.4)


def test_every_part_of_the_cost_lowers_the_capacity() -> None:
    plans = [ProgramPlan("test", (CallPlan(100, 10), CallPlan(5, 10, extends=0, after=(0,))))]
    base = StepCost(0.1, 0.1, 0.1, 0.0, 0.0)
    capacity = EngineSpec(cost=base).capacity(plans)
    assert EngineSpec(num_engines=3, cost=base).capacity(plans) == pytest.approx(3 * capacity)
    for name in ("message_s", "step_s", "row_s", "context_token_s", "prompt_token_s"):
        assert EngineSpec(cost=costs_named([f"{name}=0.2"], base)).capacity(plans) < capacity
    assert EngineSpec(cost=base, kv_tokens=256).capacity(plans) < capacity, "fewer fit"


def test_costs_by_name() -> None:
    assert costs_named(["step_s=0.5", "row_s=0"], StepCost()) == StepCost(step_s=0.5, row_s=0.0)
    with pytest.raises(ConfigError, match=r"'steps'.*step_s"):
        costs_named(["steps=1"], StepCost())
    with pytest.raises(ConfigError, match=r"step_s=fast.*step_s=0.01"):
        costs_named(["step_s=fast"], StepCost())


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"num_engines": 0}, "num_engines is 0"),
        ({"max_sequences": 0}, "max_sequences is 0"),
        ({"kv_tokens": 15}, "kv_tokens is 15: choose at least 16"),
        ({"host_tokens": -1}, "host_tokens is -1"),
        ({"disk_tokens": -1}, "disk_tokens is -1"),
        ({"max_batch_tokens": 0}, "max_batch_tokens is 0"),
        ({"page_size": 0, "kv_tokens": 0}, "page_size is 0: choose at least 1"),
        ({"page_size": -16, "kv_tokens": -16}, "page_size is -16"),
        ({"num_engines": 10**9}, "num_engines is 1000000000: choose at most 65536"),
        ({"max_sequences": 10**9}, "max_sequences is 1000000000: choose at most"),
        ({"kv_tokens": 10**15}, "kv_tokens is 10{15}: choose at most 1073741824"),
        ({"host_tokens": 10**15}, "host_tokens is 10{15}: choose at most 1073741824"),
        ({"disk_tokens": 10**15}, "disk_tokens is 10{15}: choose at most 1073741824"),
        ({"cost": StepCost(row_s=-1.0)}, "row_s is -1.0"),
        ({"cost": StepCost(step_s=float("nan"))}, "step_s is nan"),
        ({"cost": StepCost(0.0, 0.0, 0.0)}, "a step has to take time"),
    ],
)
def test_figures_that_make_no_engine(figures: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EngineSpec(**figures)
