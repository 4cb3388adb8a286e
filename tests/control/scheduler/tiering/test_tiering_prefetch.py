"""Pages that come back from the host before their program calls: sessions that wait a minute."""

from __future__ import annotations

from control_world import ENGINE
from sessions_scene import PROMPT, Sessions

from quire.control.scheduler.pausing.returns import MIN_SAMPLES

WAIT_S = 60.0
EXPECTED = 1
"""The session that goes to the host."""


def learned(move_s: float = 0.1) -> Sessions:
    """A session that calls again after ``WAIT_S``, and a block that takes ``move_s``: the whole
    device takes 6.4 s. Pages of the first one are on the host afterwards."""
    sessions = Sessions(256, above=0.95)
    clock = sessions.world.harness.clock
    for _ in range(MIN_SAMPLES + 2):
        sessions.call(EXPECTED)
        clock.advance(WAIT_S)
    scheduler = sessions.world.controller._schedulers[ENGINE]
    scheduler.tiering.times.host.observe(move_s, 1)
    sessions.call(EXPECTED)
    for session in range(2, 20):
        sessions.call(session)
    assert sessions.num_on_host(EXPECTED) > 3
    assert sessions.world.figures.num_prefetched == 0
    return sessions


def test_pages_are_back_before_their_program_calls_and_not_much_earlier() -> None:
    sessions = learned()
    sessions.wait(WAIT_S / 2)
    assert sessions.num_on_host(EXPECTED) > 3
    sessions.end(19)
    sessions.wait(WAIT_S / 2 - 3.0)
    assert sessions.num_on_host(EXPECTED) == 0
    assert sessions.world.figures.num_prefetched > 3
    found_there = sessions.world.figures.prefix.num_host_hit_tokens
    assert sessions.call(EXPECTED, PROMPT + 4) == PROMPT
    assert sessions.world.figures.prefix.num_host_hit_tokens == found_there
    sessions.world.controller.check_invariants()


def test_a_program_that_has_called_meanwhile_is_expected_later() -> None:
    sessions = learned()
    sessions.wait(WAIT_S / 2)
    sessions.call(EXPECTED)
    for session in range(20, 40):
        sessions.call(session)
    assert sessions.num_on_host(EXPECTED) > 3
    sessions.wait(WAIT_S / 2)
    assert sessions.world.figures.num_prefetched == 0
    sessions.end(39)
    sessions.wait(WAIT_S / 2 - 3.0)
    assert sessions.world.figures.num_prefetched > 3


def test_nobody_who_may_come_makes_way_for_who_is_expected() -> None:
    sessions = learned()
    sessions.wait(WAIT_S - 3.0)
    assert sessions.world.figures.num_prefetched <= 1
    assert sessions.world.figures.prefix.num_evicted == 0


def test_an_ended_program_is_not_fetched() -> None:
    sessions = learned()
    sessions.end(EXPECTED)
    sessions.wait(WAIT_S)
    assert sessions.world.figures.num_prefetched == 0


def test_where_moves_cost_nothing_nobody_is_fetched() -> None:
    sessions = learned(move_s=0.0)
    sessions.wait(WAIT_S)
    assert sessions.world.figures.num_prefetched == 0
