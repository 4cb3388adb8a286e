"""Programs played against control: order of calls, times, figures, failures, repeatability."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from typing import Any

import pytest

from benchmarks.autellix.call_records import Calls
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import EngineSpec
from quire.simulation.progress import RunProgress
from quire.simulation.step_cost import StepCost
from quire.simulation.trial import SimulationRun, TrialResult
from quire.simulation.workloads import CallPlan, ProgramPlan, create_workload, draw_programs

STEPS = StepCost(message_s=0.0, step_s=1.0, row_s=0.0, prompt_token_s=0.0)
"""A step takes a second, with any number of rows."""
SCHEDULER = SchedulerConfig(max_steps_per_message=1, run_ahead=False)


def play(
    *calls: tuple[CallPlan, ...], times_s: list[float] | None = None, **spec: Any
) -> TrialResult:
    """Programs of ``calls`` on small engines, control's invariants checked after each event."""
    plans = [ProgramPlan("test", one) for one in calls]
    engines = EngineSpec(**{"kv_tokens": 1024, "cost": STEPS, **spec})
    return SimulationRun(plans, times_s or [0.0] * len(plans), engines, SCHEDULER, check=True).run()


def test_calls_follow_one_another_and_reuse_what_was_computed() -> None:
    first, second = CallPlan(40, 9), CallPlan(8, 3, extends=0, after=(0,), wait_s=10.0)
    (one,) = play((first, second), times_s=[5.0]).outcomes
    assert (one.arrived_s, one.ended_s) == (5.0, 5.0 + 9 + 10 + 3)
    assert one.num_cached_tokens == 48, "prompt and answer, but for the last token"
    assert one.num_prefilled_tokens == 40 + 49 + 8 - 48
    assert one.token_latency_s == 22.0 / 12
    assert one.service_s == 12.0
    assert one.error is None


def test_calls_of_threads_run_side_by_side_and_join() -> None:
    plan = (
        CallPlan(4, 2),
        CallPlan(4, 5, extends=0, after=(0,), thread=1),
        CallPlan(4, 3, extends=0, after=(0,), thread=2),
        CallPlan(4, 1, extends=2, after=(1, 2)),
    )
    (one,) = play(plan).outcomes
    assert one.response_s == 2 + 5 + 1
    assert one.num_output_tokens == 11


def test_what_two_calls_begin_with_is_computed_once() -> None:
    shared = (
        CallPlan(16, 2, num_shared=16),
        CallPlan(20, 2, num_shared=16, after=(0,)),
        CallPlan(20, 2, num_shared=16, after=(1,), repeats=1),
    )
    (one,) = play(shared).outcomes
    assert one.num_cached_tokens == 16 + 32
    assert one.num_prefilled_tokens == 32 + 20 + 4


def test_texts_of_programs_differ() -> None:
    outcomes = play((CallPlan(40, 2),), (CallPlan(40, 2),), times_s=[0.0, 50.0]).outcomes
    assert [one.num_cached_tokens for one in outcomes] == [0, 0]


def test_a_launched_program_counts_with_its_launcher() -> None:
    plan = (
        CallPlan(4, 2),
        CallPlan(4, 3, after=(0,), thread=1, member=1),
        CallPlan(4, 2, extends=1, after=(1,), thread=1, member=1, wait_s=1.0),
        CallPlan(4, 1, extends=0, after=(0, 2)),
    )
    (one,) = play(plan).outcomes
    assert one.response_s == 2 + 3 + 1 + 2 + 1
    assert one.service_s == 8.0
    assert (one.num_calls, one.num_prefilled_tokens) == (4, 4 + 4 + 11 + 10)


@pytest.mark.parametrize(
    ("launcher", "ended_s"), [((CallPlan(4, 2),), 2 + 9), ((), 9)], ids=["calls", "only waits"]
)
def test_a_program_ends_with_the_last_call_of_those_that_it_launched(
    launcher: tuple[CallPlan, ...], ended_s: float
) -> None:
    after = tuple(range(len(launcher)))
    (one,) = play((*launcher, CallPlan(4, 9, after=after, thread=1, member=1))).outcomes
    assert one.error is None
    assert one.ended_s == one.service_s == ended_s
    assert one.num_prefilled_tokens == 4 * (1 + len(launcher))


def test_a_call_behind_no_other_waits_from_the_arrival_on() -> None:
    (one,) = play((CallPlan(4, 9), CallPlan(4, 10, wait_s=3.0, thread=1)), times_s=[5.0]).outcomes
    assert one.ended_s == 5.0 + 3 + 10


def test_who_finds_no_place_waits() -> None:
    outcomes = play((CallPlan(4, 5),), (CallPlan(4, 3),), max_sequences=1).outcomes
    assert [one.ended_s for one in outcomes] == [5.0, 8.0]
    assert [one.waiting_s for one in outcomes] == [0.0, 5.0]


def test_closed_arrivals_begin_when_another_ends() -> None:
    plans = ((CallPlan(4, 5),), (CallPlan(4, 3),), (CallPlan(4, 2),))
    outcomes = play(*plans, times_s=[0.0, inf, inf]).outcomes
    assert [one.arrived_s for one in outcomes] == [0.0, 5.0, 8.0]
    assert [one.response_s for one in outcomes] == [5.0, 3.0, 2.0]


def test_a_program_that_cannot_be_served_has_failed_and_the_others_go_on() -> None:
    """Its second call needs more pages than the engine has, while its thread still runs."""
    too_long = (
        CallPlan(4, 2),
        CallPlan(5000, 2, after=(0,), thread=1),
        CallPlan(4, 50, after=(0,), thread=2),
    )
    failed, ended = play(too_long, (CallPlan(4, 9),)).outcomes
    assert failed.ended_s == failed.token_latency_s == inf
    assert failed.error is not None
    assert ended.response_s == 9.0


def test_programs_share_the_engines() -> None:
    plans = [(CallPlan(4, 5),)] * 4
    one, two = (play(*plans, max_sequences=2, num_engines=n) for n in (1, 2))
    assert [outcome.ended_s for outcome in one.outcomes] == [5.0, 5.0, 10.0, 10.0]
    assert [outcome.ended_s for outcome in two.outcomes] == [5.0] * 4


@pytest.mark.parametrize("policy", ["fcfs", "round_robin", "plas", "atlas"])
def test_the_same_trial_gives_the_same_outcomes(policy: str) -> None:
    plans = draw_programs(create_workload("mixed"), 4, seed=7)
    engines = EngineSpec(num_engines=2, max_sequences=4, kv_tokens=40_000)

    def outcomes() -> Any:
        return SimulationRun(
            plans, [0.0, 1.0, 1.0, 2.0], engines, SchedulerConfig(policy=policy)
        ).run()

    first, second = outcomes(), outcomes()
    assert first.outcomes == second.outcomes
    assert first.num_messages == second.num_messages
    assert not any(one.error for one in first.outcomes)
    assert [one.num_output_tokens for one in first.outcomes] == [
        plan.num_output_tokens for plan in plans
    ]


@pytest.mark.parametrize("num_steps", [1, 4, 32])
@pytest.mark.parametrize("num_output", [1, 13, 30])
def test_messages_of_several_steps_generate_all_tokens(num_steps: int, num_output: int) -> None:
    """The pages have a slot for each token but the last, which is never run."""
    plans = [ProgramPlan("test", (CallPlan(num_prompt, num_output),)) for num_prompt in (3, 4)]
    scheduler = SchedulerConfig(step_quantum_s=100.0, max_steps_per_message=num_steps)
    engines = EngineSpec(kv_tokens=1024, cost=STEPS)
    result = SimulationRun(plans, [0.0, 0.0], engines, scheduler, check=True).run()
    assert [one.error for one in result.outcomes] == [None, None]


def test_progress_is_told_at_the_end_of_each_call_and_program_with_the_virtual_time() -> None:
    told: list[RunProgress] = []
    later = CallPlan(2, 1, after=(0,), extends=0)
    plans = [ProgramPlan("test", (CallPlan(4, 5), later)), ProgramPlan("test", (CallPlan(4, 3),))]
    engines = EngineSpec(kv_tokens=1024, cost=STEPS)
    SimulationRun(plans, [0.0, 0.0], engines, SCHEDULER, progress=told.append).run()
    assert told == [
        RunProgress(3.0, 0, 2, 1, 3),
        RunProgress(3.0, 1, 2, 1, 3),
        RunProgress(5.0, 1, 2, 2, 3),
        RunProgress(6.0, 1, 2, 3, 3),
        RunProgress(6.0, 2, 2, 3, 3),
    ]


def test_a_listener_is_told_of_the_calls() -> None:
    plan = ProgramPlan("test", (CallPlan(40, 9), CallPlan(8, 3, extends=0, after=(0,))))
    calls = Calls()
    engines = EngineSpec(kv_tokens=1024, cost=STEPS)
    SimulationRun([plan], [0.0], engines, SCHEDULER, listener=calls).run()
    assert [one.num_generated_tokens for one in calls.records] == [9, 3]
    assert [one.service_s for one in calls.records] == [9.0, 3.0]


TRIAL_WITHOUT_COLLECTION = """
import gc
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.engines import EngineSpec
from quire.simulation.step_cost import StepCost
from quire.simulation.trial import SimulationRun
from quire.simulation.workloads import create_workload, draw_programs

def create_run():
    plans = draw_programs(create_workload("mixed"), 3, 0)
    cost = StepCost(message_s=0.0, step_s=1.0, row_s=0.0, prompt_token_s=0.0)
    engines = EngineSpec(kv_tokens=8000, host_tokens=4000, max_sequences=4, cost=cost)
    return SimulationRun(plans, [0.0] * 3, engines, SchedulerConfig(policy="quire"))

create_run().run()
run = create_run()
gc.collect()
gc.disable()
result = run.run()
assert gc.collect() == 0
assert not gc.isenabled(), "what was off stays off"
assert all(one.error is None for one in result.outcomes)
"""


def test_a_trial_leaves_no_cycles_since_nothing_collects_them_meanwhile() -> None:
    """In a process of its own, where no other thread leaves objects behind meanwhile, and after
    a first trial, which has imported what trials need."""
    code = [sys.executable, "-c", TRIAL_WITHOUT_COLLECTION]
    ran = subprocess.run(code, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
