"""What leaves the host for the disk: sessions on a host that is too small, and when they return."""

from __future__ import annotations

from control_world import ENGINE
from sessions_scene import ANSWER, PROMPT, Sessions

from quire.control.scheduler.tiering.spilling import FIRST_PAUSE_S, MEASURED_FOR_S
from quire.control.scheduler.tiering.tiering import Tiering
from quire.core.batch import WriteDisk
from quire.testing.fake_engine.memory import Move

NUM_SESSIONS = 30
NUM_HOST_BLOCKS = 24


def played(num_disk_blocks: int) -> Sessions:
    sessions = Sessions(NUM_HOST_BLOCKS, num_disk_blocks=num_disk_blocks)
    for session in range(1, NUM_SESSIONS):
        assert sessions.call(session) == 0
    return sessions


def tiering(sessions: Sessions) -> Tiering:
    return sessions.world.controller._schedulers[ENGINE].tiering


def num_writes(sessions: Sessions) -> int:
    batches = [dispatch.batch for dispatch in sessions.world.harness.dispatched]
    return sum(isinstance(op, WriteDisk) for batch in batches for op in batch.operations)


def test_who_comes_back_finds_on_the_disk_what_had_no_room_on_the_host() -> None:
    found = {size: played(size).call(14, PROMPT + ANSWER) for size in (0, 300)}
    assert found == {0: found[0], 300: PROMPT}
    assert found[0] < PROMPT


def test_a_host_with_a_disk_below_it_has_free_blocks() -> None:
    sessions = played(300)
    pool = sessions.world.pool
    assert pool.num_host_free > 0
    assert pool.num_disk_blocks - pool.num_disk_free == pool.num_disk_cached > 0
    assert sessions.world.figures.prefix.num_evicted == 0


def test_a_full_disk_keeps_what_came_first_of_equally_likely_pages() -> None:
    sessions = played(6)
    assert sessions.world.pool.num_disk_free == 0
    assert sessions.world.pool.num_disk_written == 6


def test_writes_that_take_longer_than_computing_are_tried_again_after_a_while() -> None:
    """A prompt of 40 tokens tells what a token costs: less than what a write is said to."""
    sessions = Sessions(NUM_HOST_BLOCKS, num_disk_blocks=300)
    sessions.call(50, 40)
    for session in range(1, 16):
        sessions.call(session)
    tiering(sessions).times.write.observe(1e6, 1)
    written = num_writes(sessions)
    assert written > 0
    for session in range(16, 22):
        sessions.call(session)
    assert num_writes(sessions) == written
    sessions.wait(MEASURED_FOR_S)
    for session in range(22, NUM_SESSIONS):
        sessions.call(session)
    assert num_writes(sessions) > written


def test_a_disk_that_goes_on_failing_is_left_alone_for_longer() -> None:
    sessions = Sessions(NUM_HOST_BLOCKS, num_disk_blocks=300, disk_fault=breaks)
    for session in range(1, 16):
        sessions.call(session)
    tries = [num_writes(sessions)]
    for pause_s in (FIRST_PAUSE_S, FIRST_PAUSE_S, FIRST_PAUSE_S):
        sessions.wait(pause_s)
        for session in range(16, 20):
            sessions.call(session + 10 * len(tries))
        tries.append(num_writes(sessions))
    assert not sessions.world.pool.is_disk_open
    assert tries[0] < tries[1], "after ten seconds it is tried again"
    assert tries[1] == tries[2], "and then not for twenty"
    assert tries[2] < tries[3]


def breaks(move: Move) -> bool:
    return move.target[0] == "disk"
