"""Cached pages go to the host before they are evicted: sessions on a pool that is too small."""

from __future__ import annotations

import pytest
from control_world import ENGINE
from sessions_scene import PROMPT, Sessions


@pytest.mark.parametrize(
    ("num_host_blocks", "above", "num_found"), [(0, 0.0, 0), (64, 0.0, 24), (64, 0.95, 24)]
)
def test_who_comes_back_finds_on_the_host_what_had_no_room(
    num_host_blocks: int, above: float, num_found: int
) -> None:
    sessions = Sessions(num_host_blocks, above=above)
    for session in range(1, 20):
        assert sessions.call(session) == 0
    pool = sessions.world.pool
    assert bool(pool.num_demoted) == bool(num_host_blocks)
    assert sessions.call(1, PROMPT + 4) == num_found
    sessions.world.controller.check_invariants()
    hits = sessions.world.figures.prefix.num_host_hit_tokens
    assert bool(hits) == bool(num_host_blocks)


def test_what_ended_programs_have_left_is_evicted_and_not_moved() -> None:
    sessions = Sessions(64)
    for session in range(1, 20):
        sessions.call(session)
        sessions.end(session)
    assert sessions.world.pool.num_demoted == 0
    assert sessions.world.figures.prefix.num_evicted > 0


def test_a_full_host_keeps_what_came_first_of_equally_likely_pages() -> None:
    sessions = Sessions(6)
    for session in range(1, 20):
        sessions.call(session)
    assert sessions.world.pool.num_host_free == 0
    assert sessions.call(1, PROMPT + 4) == PROMPT


def test_who_ends_leaves_its_place_on_the_host() -> None:
    sessions = Sessions(12, above=0.95)
    for session in range(1, 20):
        sessions.call(session)
    num_demoted = sessions.world.pool.num_demoted
    sessions.end(2)
    sessions.call(20)
    assert sessions.world.pool.num_demoted > num_demoted


def test_moves_that_take_longer_than_computing_are_not_made() -> None:
    """A prompt of 40 tokens tells what a token costs: less than what a move is said to."""
    sessions = Sessions(64)
    sessions.call(30, 40)
    for session in range(1, 16):
        sessions.call(session)
    moved = sessions.world.pool.num_demoted
    assert moved > 0
    scheduler = sessions.world.controller._schedulers[ENGINE]
    scheduler.tiering.times.host.observe(1e6, 1)
    for session in range(16, 30):
        sessions.call(session)
    assert sessions.world.pool.num_demoted == moved
