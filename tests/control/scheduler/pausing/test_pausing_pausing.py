"""Programs that are paused between two calls: scenes of agents on a pool that is too small."""

from __future__ import annotations

from typing import Any

import pytest
from control_agents import ELDER, Agents
from control_world import ENGINE

from quire.core.calls import Cancel
from quire.core.errors import ConfigError
from quire.core.ids import ProgramId
from quire.core.scheduler_config import PausingConfig
from quire.testing import FakeEngine

LIMIT = 24
"""Blocks for working sets: three eighths of 64. The elder's first call does not count."""


def two_agents(**more: Any) -> Agents:
    """Agents 2 and 3 have come back, and work on ten blocks each. No prompt is long enough to tell
    what a token costs: whoever has come back is held as long as a turn may last."""
    agents = Agents(**more)
    for num_tokens in (12, 12, 4):
        agents.turn(2, num_tokens)
        agents.turn(3, num_tokens)
    assert agents.world.figures.num_working_set_blocks == 20
    return agents


def test_a_program_without_room_is_paused_until_another_one_ends() -> None:
    agents = two_agents()
    agents.turn(4, 28)
    assert agents.is_paused(4)
    assert (agents.world.figures.num_paused, agents.world.figures.num_pauses) == (1, 1)
    agents.turn(2, 4)
    assert agents.cached[2] == 36, "who is let in goes on, and finds what it had"
    assert agents.is_paused(4)
    agents.end(3)
    agents.settle()
    assert not agents.calls
    assert agents.world.figures.num_paused == 0


def test_one_with_room_beside_the_others_passes() -> None:
    agents = two_agents()
    agents.turn(4, 12)
    assert not agents.calls
    assert agents.world.figures.num_pauses == 0


def test_who_would_have_room_does_not_pass_by_who_was_paused_before() -> None:
    agents = two_agents()
    agents.turn(4, 28)
    agents.turn(5, 4)
    assert agents.is_paused(5)
    agents.end(3)
    agents.settle()
    assert not agents.calls


def test_where_nobody_is_held_whoever_calls_takes_the_room_of_those_that_do_not() -> None:
    agents = two_agents(max_hold_s=0.0)
    agents.turn(4, 28)
    assert not agents.calls
    assert agents.world.figures.num_pauses == 0


def test_room_is_kept_as_long_as_a_hold_lasts() -> None:
    agents = two_agents(max_hold_s=5.0)
    agents.turn(4, 28)
    assert agents.is_paused(4)
    agents.world.harness.clock.advance(6.0)
    agents.settle()
    assert not agents.calls


def test_without_a_limit_nobody_is_paused() -> None:
    agents = Agents(above=0.0)
    for agent in (2, 3, 2, 3, 4):
        agents.turn(agent, 12)
    assert agents.world.figures.num_pauses == 0


def test_where_programs_grow_who_came_in_last_is_paused_at_its_next_call() -> None:
    agents = two_agents()
    agents.turn(2, 12)
    agents.turn(2, 12)
    assert not agents.calls, "18 and 10 blocks are more than the limit, and the first goes on"
    agents.turn(3, 4)
    assert agents.is_paused(3)
    agents.end(2)
    agents.settle()
    assert not agents.calls


def test_programs_that_may_never_come_back_make_room() -> None:
    """Nothing is known of their kind, and each has called once."""
    agents = Agents()
    for agent in range(2, 8):
        agents.turn(agent, 28)
    assert agents.world.figures.num_pauses == 0
    assert agents.world.figures.num_working_set_blocks <= LIMIT + 8


def test_what_is_given_up_is_evicted_before_what_is_kept() -> None:
    """Agent 2 was quiet for longest. Without pauses its pages would be the first to go."""
    agents = Agents()
    for num_tokens in (12, 12, 4):
        agents.turn(2, num_tokens)
    for agent in range(4, 13):
        agents.turn(agent, 28)
    assert agents.world.figures.prefix.num_evicted
    agents.turn(2, 4)
    assert agents.cached[2] == 36


def test_one_that_waits_too_long_takes_the_place_of_who_was_let_in_first() -> None:
    agents = two_agents(max_s=5.0)
    agents.turn(4, 28)
    assert agents.is_paused(4)
    agents.world.harness.clock.advance(3.0)
    agents.turn(2, 1)
    agents.turn(3, 1)
    assert agents.is_paused(4)
    agents.world.harness.clock.advance(3.0)
    agents.call(2, 1)
    agents.settle()
    assert not agents.calls
    assert agents.world.figures.num_pauses == 2, "agent 2 made way, and went on behind it"


def test_nobody_waits_longer_than_the_bound() -> None:
    """Four agents call again at once, always; two fit."""
    max_s = 0.02
    agents = two_agents(max_s=max_s, above=0.375)
    since: dict[int, float] = {}
    longest_s, times = 0.0, dict.fromkeys(range(2, 6), 0)
    for _ in range(110):
        for agent in sorted(set(times) - set(agents.calls)):
            text = agents.texts.get(agent)
            if text is not None:
                del text[28:]
            agents.call(agent, 28 if text is None else 4)
            since[agent] = agents.world.harness.now_s
        assert agents.world.harness.step()
        for agent in agents.take_answers():
            times[agent] += 1
            longest_s = max(longest_s, agents.world.harness.now_s - since[agent])
    assert agents.world.figures.num_pauses > 0
    assert all(times.values()), f"an agent was never served: {times}"
    call_s = 10 * 0.01
    assert longest_s <= (3 + 2) * (max_s + call_s)


def the_oldest_waits() -> Agents:
    """Agent 5 is the oldest active program, and waits outside while agent 6 computes its call. The
    limit is eight blocks."""
    agents = Agents(above=0.125, max_s=5.0)
    agents.world.program(5, queues=0)
    agents.texts[5] = []
    for _ in range(2):
        agents.turn(6, 12)
    agents.end(ELDER)
    agents.call(6, 1)
    agents.step()
    agents.call(5, 28)
    agents.step()
    assert agents.is_paused(5)
    assert not agents.is_paused(6)
    return agents


def test_the_oldest_active_program_goes_on_when_it_is_overdue_whatever_others_have() -> None:
    agents = the_oldest_waits()
    agents.world.harness.clock.advance(6.0)
    agents.step()
    assert not agents.is_paused(5)
    assert 6 in agents.calls, "no call has ended that would have made room"
    while agents.calls:
        agents.step()


def test_until_then_it_waits_for_room_as_long_as_others_compute() -> None:
    agents = the_oldest_waits()
    agents.world.harness.clock.advance(4.0)
    while 6 in agents.calls:
        assert agents.is_paused(5)
        agents.step()
    agents.step()
    assert not agents.is_paused(5), "agent 6 is held, but the engine has nothing to do"
    while agents.calls:
        agents.step()


def test_who_computes_alone_is_not_paused_for_the_sake_of_those_that_are_held() -> None:
    agents = two_agents()
    agents.end(ELDER)
    agents.call(3, 28)
    while agents.calls:
        agents.step()
    assert agents.world.figures.num_working_set_blocks > LIMIT
    agents.call(3, 4)
    while agents.calls:
        agents.step()
    assert agents.world.figures.num_pauses == 0


def test_what_a_paused_program_holds_is_there_for_others() -> None:
    """Inferlets hold their pages; one that is paused does not keep them against who runs."""
    agents = Agents(holds=True)
    for agent, num_tokens in ((2, 12), (3, 12), (2, 12), (3, 12), (2, 12), (2, 12), (3, 4)):
        agents.turn(agent, num_tokens)
    assert agents.is_paused(3)
    assert next(iter(agents.world.controller._table.holders[ENGINE])) == 3
    agents.end(2)
    agents.settle()
    assert not agents.calls


def test_a_paused_call_can_be_cancelled_and_its_program_calls_again() -> None:
    agents = two_agents()
    agents.turn(4, 28)
    _, outcome = agents.calls.pop(4)
    agents.world.harness.call(ProgramId(4), Cancel(outcome.command.id))
    assert outcome.status == "cancelled"
    agents.world.harness.step()
    assert agents.world.figures.num_paused == 0
    agents.texts[4].clear()
    agents.turn(4, 12)
    assert not agents.calls


def test_a_program_may_end_while_it_is_paused() -> None:
    agents = two_agents()
    agents.turn(4, 28)
    agents.end(4)
    assert agents.world.figures.num_paused == 0
    agents.calls.clear()
    agents.turn(2, 4)
    assert not agents.calls


def test_a_program_may_end_with_several_calls_that_are_paused() -> None:
    agents = two_agents()
    agents.turn(4, 28)
    _, first = agents.calls[4]
    agents.texts[4] = []
    agents.turn(4, 24)
    _, second = agents.calls[4]
    assert agents.world.figures.num_paused == 1, "they are one program's"
    agents.end(4)
    assert (first.status, second.status) == ("cancelled", "cancelled")
    assert agents.world.figures.num_paused == 0
    agents.calls.clear()
    agents.turn(2, 4)
    assert not agents.calls


def test_a_paused_program_outlives_its_engine() -> None:
    agents = two_agents()
    agents.turn(4, 28)
    agents.world.harness.lose_engine(ENGINE)
    agents.world.harness.start_engine(ENGINE, FakeEngine(agents.world.engine.info.pool))
    agents.world.run()
    assert agents.calls[4][1].status == "done"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"above": 1.5}, "pausing.above is 1.5, a share"),
        ({"above": float("nan")}, "above is nan"),
        ({"resume_below": 0.96}, "pausing.resume_below is 0.96 and pausing.above 0.95"),
        ({"resume_below": 0.0}, "resume_below is 0 and"),
        ({"max_s": 0.0}, "max_s is 0:"),
        ({"max_s": float("inf")}, "max_s is inf"),
        ({"max_hold_s": -1.0}, "max_hold_s is -1:"),
    ],
)
def test_limits_that_are_none_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PausingConfig(**fields)
