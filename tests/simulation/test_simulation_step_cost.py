"""What a message costs: its prompts and its steps, and the least that a pass takes."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.simulation import StepCost
from quire.simulation.engines import EngineSpec
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

SUMS = StepCost(step_s=1.0, row_s=0.25, prompt_s=0.5, prompt_token_s=0.125)
PASSES = StepCost(step_s=1.0, row_s=0.25, prompt_s=0.5, prompt_token_s=0.125, pass_s=4.0)


def test_without_a_least_time_prompts_and_steps_are_summed() -> None:
    assert SUMS.passes_s(num_prompt=8, num_steps=2, num_first=3, num_rows=5) == 0.5 + 1 + 2 + 1.25
    assert SUMS.passes_s(0, 1, 2, 2) == 1.5
    assert SUMS.passes_s(0, 0, 0, 0) == 0


@pytest.mark.parametrize(
    ("counts", "expected_s"),
    [
        ((0, 0, 0, 0), 0.0),  # blocks are moved: no pass
        ((8, 0, 0, 0), 4.0),  # 1.5 of a short prompt
        ((64, 0, 0, 0), 8.5),
        ((0, 1, 4, 4), 4.0),  # 2.0 of a step
        ((0, 3, 4, 12), 12.0),
        ((8, 1, 4, 4), 4.0),  # a short prompt is free beside a step
        ((64, 1, 4, 4), 10.5),
        ((64, 3, 4, 12), 10.5 + 8.0),  # two more passes behind it
        ((0, 2, 20, 40), 12.0),  # more rows than a pass hides
    ],
)
def test_a_pass_takes_its_least_time(counts: tuple[int, int, int, int], expected_s: float) -> None:
    assert PASSES.passes_s(*counts) == expected_s


def test_tokens_of_prompts_attend_to_what_is_before_them(make_world: Any) -> None:
    """Ten tokens attend to 1 + 2 + ... + 10; the message of the prompt has one step, too."""
    ends = []
    for each_s in (0.0, 0.01):
        cost = StepCost(message_s=0, step_s=1, row_s=0, prompt_token_s=0, prompt_context_s=each_s)
        world = make_world(cost=cost)
        world.simulation.at(0.0, world.launch(1, range(10), 1))
        world.simulation.run()
        ends.append(world.ended_s[1])
    assert ends == [1.0, pytest.approx(1.55)]


def test_a_capacity_knows_the_least_time_of_a_pass() -> None:
    plans = [ProgramPlan("p", (CallPlan(100, 10),))]
    free = StepCost(message_s=0, step_s=0, row_s=0.01, prompt_token_s=0, pass_s=0)
    assert EngineSpec(max_sequences=4, cost=free).capacity(plans) == pytest.approx(1 / 0.1)
    bound = StepCost(message_s=0, step_s=0, row_s=0.01, prompt_token_s=0, pass_s=0.4)
    assert EngineSpec(max_sequences=4, cost=bound).capacity(plans) == pytest.approx(1 / 1.0)
    attends = StepCost(message_s=0, step_s=0, row_s=0.01, prompt_token_s=0, prompt_context_s=0.0001)
    expected = 1 / (0.1 + 0.0001 * 100 * 50)
    assert EngineSpec(max_sequences=4, cost=attends).capacity(plans) == pytest.approx(expected)


def test_a_step_has_to_take_time() -> None:
    nothing = StepCost(message_s=0, step_s=0, row_s=0)
    with pytest.raises(ConfigError, match="pass_s of the cost are all 0"):
        EngineSpec(cost=nothing)
