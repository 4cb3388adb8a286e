"""The order of events: calls, ends of messages and the timer, with parallel engines."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.ids import EngineId
from quire.simulation import StepCost
from quire.simulation.overhead import Overhead

PROMPT = list(range(8))


def test_calls_come_in_the_order_of_time_and_then_of_asking(make_world: Any) -> None:
    simulation = make_world().simulation
    seen: list[tuple[str, float]] = []

    def note(name: str) -> Any:
        return lambda: seen.append((name, simulation.now_s))

    simulation.at(2.0, note("late"))
    simulation.at(1.0, note("first"))
    simulation.at(1.0, note("second"))
    simulation.after(0.5, lambda: simulation.at(0.0, note("past")))
    simulation.run()
    assert seen == [("past", 0.5), ("first", 1.0), ("second", 1.0), ("late", 2.0)]


def test_a_decode_takes_a_step_for_each_token(make_world: Any) -> None:
    world = make_world()
    world.simulation.at(10.0, world.launch(1, PROMPT, 5))
    world.simulation.run()
    assert len(world.tokens[1]) == 5
    assert world.ended_s[1] == 15.0


def test_decodes_of_one_engine_share_its_steps(make_world: Any) -> None:
    """The second decode arrives during a step and joins the next one."""
    world = make_world()
    world.simulation.at(0.0, world.launch(1, PROMPT, 4))
    world.simulation.at(1.5, world.launch(2, [9, *PROMPT], 2))
    world.simulation.run()
    assert world.ended_s == {1: 4.0, 2: 4.0}


def test_engines_run_side_by_side(make_world: Any) -> None:
    world = make_world(num_engines=2)
    world.simulation.at(0.0, world.launch(1, PROMPT, 4))
    world.simulation.at(0.5, world.launch(2, [9, *PROMPT], 4))
    world.simulation.run()
    assert world.ended_s == {1: 4.0, 2: 4.5}


def test_it_stops_at_a_time_and_continues(make_world: Any) -> None:
    world = make_world()
    world.simulation.at(0.0, world.launch(1, PROMPT, 4))
    world.simulation.run(until_s=2.5)
    assert (world.simulation.now_s, len(world.tokens[1])) == (2.5, 2)
    world.simulation.run()
    assert world.ended_s[1] == 4.0


def test_the_timer_comes_in_its_turn(make_world: Any) -> None:
    """Control's timer ends a program that is idle for too long."""
    world = make_world()
    times_s: list[float] = []
    world.simulation.at(0.0, lambda: setattr(world.shell, "timer_s", 3.0))
    world.simulation.at(5.0, lambda: None)
    while world.simulation.step():
        times_s.append(world.shell.now_s)
    assert times_s == [0.0, 3.0, 5.0]
    assert world.shell.timer_s is None


def test_a_lost_engine_ends_what_it_ran(make_world: Any) -> None:
    world = make_world()
    world.simulation.at(0.0, world.launch(1, PROMPT, 4))
    world.simulation.at(2.5, lambda: world.shell.lose_engine(EngineId("light#0"), "a test"))
    world.simulation.run()
    assert "engine light#0 is lost: a test" in world.failed[1]
    assert not world.ended_s


@pytest.mark.parametrize(
    ("run_ahead", "expected_s"),
    [(False, 3 * (2.0 + 1.0 + 0.5)), (True, (2.0 + 1.0 + 0.5) + 2 * (2.0 + 0.25 + 0.125))],
)
def test_control_takes_its_time_for_each_message_and_row(
    make_world: Any, run_ahead: bool, expected_s: float
) -> None:
    """Three messages to an idle engine; or one, and two that wait behind another."""
    cost = StepCost(
        message_s=0.0, step_s=2.0, row_s=0.0, prompt_token_s=0.0,
        gap_s=1.0, gap_row_s=0.5, behind_s=0.25, behind_row_s=0.125,
    )  # fmt: skip
    world = make_world(cost=cost, run_ahead=run_ahead)
    world.simulation.at(0.0, world.launch(1, PROMPT, 3))
    world.simulation.run()
    assert world.ended_s[1] == expected_s


def test_a_message_that_comes_late_begins_when_it_is_there() -> None:
    overhead = Overhead(gap_s=1.0, gap_row_s=0.5, behind_s=0.25, behind_row_s=0.125)
    assert overhead.begin_s(10.0, 4.0, 2) == 12.0, "the engine is idle"
    assert overhead.begin_s(10.0, 20.0, 2) == 20.5, "it waits behind another"
    assert overhead.begin_s(10.0, 10.5, 2) == 12.0, "it was sent just before the other's end"


@pytest.mark.parametrize(
    ("cost", "expected_s"),
    [
        (StepCost(message_s=1.0, step_s=0.0, row_s=0.0, prompt_token_s=0.0), 3.0),
        (StepCost(message_s=0.0, step_s=2.0, row_s=0.0, prompt_token_s=0.0), 6.0),
        (StepCost(message_s=0.0, step_s=0.0, row_s=0.5, prompt_token_s=0.0), 1.5),
        (StepCost(message_s=0.0, step_s=0.0, row_s=0.0, prompt_token_s=0.25), 2.0),
        (StepCost(message_s=1.0, step_s=0.0, row_s=0.0, prompt_s=4.0, prompt_token_s=0.0), 7.0),
    ],
)
def test_each_part_of_the_cost_counts(make_world: Any, cost: StepCost, expected_s: float) -> None:
    """Three tokens after a prompt of eight: three messages of one step and one row."""
    world = make_world(cost=cost)
    world.simulation.at(0.0, world.launch(1, PROMPT, 3))
    world.simulation.run()
    assert world.ended_s[1] == expected_s
