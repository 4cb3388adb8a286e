"""``srpt`` and ``gittins``: the order of the theory, and what control asks of every policy."""

from __future__ import annotations

import pytest

from quire.core.ids import ProgramId
from quire.core.policy import Policy
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation.bounds import Gittins, ShortestRemaining
from quire.simulation.engines import EngineSpec
from quire.simulation.step_cost import StepCost
from quire.simulation.trial import SimulationRun
from quire.simulation.work import Work, WorkTable
from quire.simulation.workloads import CallPlan, ProgramPlan
from quire.testing.conformance.policy import ready

STEPS = StepCost(message_s=0.0, step_s=1.0, row_s=0.0, prompt_token_s=0.0)
SCHEDULER = SchedulerConfig(max_steps_per_message=1, run_ahead=False)


def program(*lengths: int) -> ProgramPlan:
    """Calls of so many tokens, one behind the other."""
    calls = [CallPlan(4, lengths[0])]
    calls += [
        CallPlan(1, length, extends=before, after=(before,))
        for before, length in enumerate(lengths[1:])
    ]
    return ProgramPlan("test", tuple(calls))


def works_of(**lengths: float) -> WorkTable:
    works = WorkTable(0.0)
    for number, total in enumerate(lengths.values(), 1):
        works.join(ProgramId(number), Work(total))
    return works


def test_the_shortest_remaining_program_runs_first_and_displaces() -> None:
    """On one place: of 40 the first tokens run, sixteen, which no decode is displaced before, then
    all of the later 3, then the rest."""
    trial = SimulationRun(
        [program(40), program(3)],
        [0.0, 1.5],
        EngineSpec(max_sequences=1, kv_tokens=256, cost=STEPS),
        SCHEDULER,
        policy=ShortestRemaining,
        check=True,
    )
    assert [one.ended_s for one in trial.run().outcomes] == [43.0, 19.0]


def test_work_left_counts_and_not_the_call_at_hand() -> None:
    """A program of 1 + 9 tokens comes behind one of 6, though its first call is shorter."""
    trial = SimulationRun(
        [program(1, 9), program(6)],
        [0.0, 0.0],
        EngineSpec(max_sequences=1, kv_tokens=256, cost=STEPS),
        SCHEDULER,
        policy=ShortestRemaining,
        check=True,
    )
    outcomes = trial.run().outcomes
    assert outcomes[1].ended_s < outcomes[0].ended_s


def test_prompts_count_by_what_they_cost() -> None:
    works = WorkTable(0.5)
    plan = ProgramPlan("test", (CallPlan(10, 3), CallPlan(10, 4, repeats=0)))
    work = works.start(plan)
    assert work.total == 7 + 0.5 * 10
    for call in plan.calls:
        works.prompt_done(work, call)
    assert work.left == 7.0


def test_the_index_of_equal_programs_is_their_work_left() -> None:
    """Whoever is near the end comes first: as for ``srpt``."""
    gittins = Gittins(WorkTable(0.0), [100.0] * 10)
    ranks = [gittins.rank(Work(100.0, done)) for done in (0.0, 50.0, 80.0)]
    assert ranks[0] == 100.0
    assert ranks == sorted(ranks, reverse=True)


def test_the_index_of_a_long_tail_prefers_those_that_had_least() -> None:
    """Nine of ten need 10, one 1,000: at first 10 + 10 / 9 for each that ends, past 10 all of the
    rest."""
    gittins = Gittins(WorkTable(0.0), [10.0] * 9 + [1000.0])
    assert gittins.rank(Work(0.0)) == pytest.approx(100.0 / 9)
    assert gittins.rank(Work(1000.0, 20.0)) > 900.0
    assert gittins.rank(Work(2000.0, 1500.0)) < 1000.0, "past all samples: the last known rank"


@pytest.mark.parametrize("kind", ["srpt", "gittins"])
def test_keys_change_only_when_control_is_told(kind: str) -> None:
    works = works_of(first=100.0, second=50.0)
    policy: Policy = (
        ShortestRemaining(works) if kind == "srpt" else Gittins(works, [10.0, 50.0, 100.0])
    )
    assert isinstance(policy, Policy)
    commands = [ready(1, program=1), ready(2, program=1), ready(3, program=2)]
    for command in commands:
        policy.on_arrival(command, 0.0)
    before = [policy.key(command) for command in commands]
    work = works.of(ProgramId(1))
    assert work is not None
    work.done = 70.0
    policy.on_served(commands[0], 70, 1.0, 1.0)
    assert [policy.key(command) for command in commands] == before
    assert list(policy.on_time(2.0)) == commands[:2], "all commands of the program that was served"
    after = [policy.key(command) for command in commands]
    assert after[2] == before[2]
    assert after[0] != before[0]
    assert list(policy.on_time(3.0)) == []


def test_what_ends_is_forgotten() -> None:
    works = works_of(only=10.0)
    policy = ShortestRemaining(works)
    command = ready(1)
    policy.on_arrival(command, 0.0)
    policy.on_served(command, 5, 1.0, 1.0)
    works.leave(ProgramId(1))
    assert list(policy.on_time(1.0)) == []
    policy.on_ended(command, 1.0)
    policy.on_program_ended(ProgramId(1), 1.0)
    assert vars(policy) == vars(ShortestRemaining(works))
