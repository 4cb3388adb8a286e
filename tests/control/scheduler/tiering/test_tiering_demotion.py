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


def test_blocks_are_free_ahead_for_the_message_behind_the_running_one_too() -> None:
    """A prompt of two messages of 12 tokens: both are sent before a transfer can end."""
    sessions = Sessions(64, max_batch_tokens=PROMPT // 2)
    for session in range(1, 12):
        sessions.call(session)
    assert sessions.world.figures.prefix.num_evicted == 0
    assert sessions.world.pool.num_demoted > 0
    assert sessions.call(1, PROMPT + 4) == PROMPT


def test_of_prompts_that_do_not_fit_the_beginnings_are_kept() -> None:
    """A message takes half of the device, an eighth of it is free ahead: most is evicted."""
    sessions = Sessions(256)
    for session in range(1, 9):
        sessions.call(session, 96)
    assert sessions.world.figures.prefix.num_evicted > 0
    for session in range(1, 6):
        depths = sorted(len(one.node.path()) for one in sessions.contents(session) if one.node)
        assert depths == list(range(1, len(depths) + 1)), "what is kept cannot be found"
    assert sessions.call(1, 100) > 0
