"""The order of events: calls, ends of messages and the timer, with parallel engines."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.ids import EngineId
from quire.simulation import StepCost

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
    ticks: list[float] = []
    world.simulation.at(0.0, lambda: setattr(world.shell, "timer_s", 3.0))
    fire = world.shell.fire_timer
    world.shell.fire_timer = lambda: (ticks.append(world.shell.timer_s), fire())
    world.simulation.at(5.0, lambda: ticks.append(world.shell.now_s))
    world.simulation.run()
    assert ticks == [3.0, 5.0]


def test_a_lost_engine_ends_what_it_ran(make_world: Any) -> None:
    world = make_world()
    world.simulation.at(0.0, world.launch(1, PROMPT, 4))
    world.simulation.at(2.5, lambda: world.shell.lose_engine(EngineId("light#0"), "a test"))
    world.simulation.run()
    assert "engine light#0 is lost: a test" in world.failed[1]
    assert not world.ended_s


@pytest.mark.parametrize(
    ("cost", "expected_s"),
    [
        (StepCost(message_s=1.0, step_s=0.0, row_s=0.0, prompt_token_s=0.0), 3.0),
        (StepCost(message_s=0.0, step_s=2.0, row_s=0.0, prompt_token_s=0.0), 6.0),
        (StepCost(message_s=0.0, step_s=0.0, row_s=0.5, prompt_token_s=0.0), 1.5),
        (StepCost(message_s=0.0, step_s=0.0, row_s=0.0, prompt_token_s=0.25), 2.0),
    ],
)
def test_each_part_of_the_cost_counts(make_world: Any, cost: StepCost, expected_s: float) -> None:
    """Three tokens after a prompt of eight: three messages of one step and one row."""
    world = make_world(cost=cost)
    world.simulation.at(0.0, world.launch(1, PROMPT, 3))
    world.simulation.run()
    assert world.ended_s[1] == expected_s
