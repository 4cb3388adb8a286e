"""The disk tier: what programs hold goes there when host memory is full, and comes back exactly; a
disk that fails costs time and nothing else, but for what cannot be computed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from control_world import ENGINE, World, alone

from quire.control.scheduler.tiering.spilling import FIRST_PAUSE_S
from quire.core.batch import ReadDisk, WriteDisk
from quire.core.calls import ResetQueue
from quire.core.errors import ErrorRecord
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId, QueueId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.memory import Move

NUM_PROGRAMS = 4
NUM_DISK_BLOCKS = 32
POOL = {"num_blocks": 4, "num_disk_blocks": NUM_DISK_BLOCKS}


def prompt(program: int) -> list[int]:
    return [program, *range(50, 61)]


def world_with(num_host_blocks: int, fault: Callable[[Move], bool] | None = None) -> World:
    pool = fake_pool(num_host_blocks=num_host_blocks, **POOL)
    return World(engine=FakeEngine(pool, disk_fault=fault))


def fill(world: World, num_programs: int = NUM_PROGRAMS) -> dict[int, list[int]]:
    """Each program fills the device and is idle then; what each has said."""
    said = {}
    for program in range(1, num_programs + 1):
        world.program(program)
        pages = range(4)
        said[program] = world.do(
            program, world.alloc(pages), world.decode(pages, prompt(program), 3)
        )[1].tokens
    return said


def go_on(world: World, program: int, said: list[int]) -> list[int]:
    """The program says one token more behind what it holds."""
    position = len(prompt(program)) + len(said) - 1
    (more,) = world.do(program, world.decode(range(4), said[-1:], 1, position=position))
    assert more.error is None, more.error
    return more.tokens


def operations(world: World, kind: type) -> list[object]:
    return [op for d in world.harness.dispatched for op in d.batch.operations if type(op) is kind]


def end_all(world: World) -> None:
    for program in range(1, NUM_PROGRAMS + 1):
        world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program)))
    world.run()
    world.controller.check_invariants()
    pool = world.pool
    assert (pool.num_transfers, pool.num_held) == (0, 0)
    assert pool.num_host_free + pool.num_host_cached == pool.num_host_blocks
    assert pool.num_disk_free + pool.num_disk_cached == pool.num_disk_blocks


@pytest.mark.parametrize("num_host_blocks", [0, 3, 8])
def test_what_programs_hold_goes_to_the_disk_and_comes_back(num_host_blocks: int) -> None:
    world = world_with(num_host_blocks)
    said = fill(world)
    assert world.pool.num_disk_written > 0
    assert world.pool.num_dropped == 0, "nothing has to be computed again"
    tiers = {op.tier for op in operations(world, WriteDisk)}  # type: ignore[attr-defined]
    assert ("host" in tiers) == bool(num_host_blocks)
    for program in range(1, NUM_PROGRAMS + 1):
        assert go_on(world, program, said[program]) == alone(prompt(program), 4)[3:]
        world.controller.check_invariants()
    assert world.pool.num_disk_read == sum(
        len(op.blocks)  # type: ignore[attr-defined]
        for op in operations(world, ReadDisk)
    )
    assert world.pool.num_disk_read > 0
    end_all(world)


def test_what_cannot_be_written_stays_on_the_host_or_is_computed_again() -> None:
    world = world_with(4, lambda move: move.target[0] == "disk")
    said = fill(world)
    pool = world.pool
    assert pool.num_failed_writes > 0
    assert not pool.is_disk_open
    assert pool.num_disk_free == pool.num_disk_blocks
    num_tries = len(operations(world, WriteDisk))
    for program in range(1, NUM_PROGRAMS + 1):
        assert go_on(world, program, said[program]) == alone(prompt(program), 4)[3:]
    assert len(operations(world, WriteDisk)) == num_tries, "a broken disk is left alone"
    world.harness.clock.advance(FIRST_PAUSE_S)
    fill_again = world.do(1, world.alloc(range(20, 24)), world.decode(range(20, 24), [7] * 13, 3))
    assert fill_again[1].tokens == alone([7] * 13, 3)
    assert len(operations(world, WriteDisk)) > num_tries, "and tried again after a while"
    end_all(world)


@pytest.mark.parametrize("num_host_blocks", [0, 4])
def test_what_cannot_be_read_is_computed_again(num_host_blocks: int) -> None:
    world = world_with(num_host_blocks, lambda move: move.source[0] == "disk")
    said = fill(world)
    for program in range(1, NUM_PROGRAMS + 1):
        assert go_on(world, program, said[program]) == alone(prompt(program), 4)[3:]
        world.controller.check_invariants()
    assert world.pool.num_failed_reads > 0
    assert world.pool.num_disk_read == 0
    end_all(world)


def opaque_page(world: World, program: int, page: int) -> None:
    """A page whose tokens saw what no chain of tokens tells."""
    embeds = range(4)
    world.do(
        program,
        world.alloc([page]),
        world.alloc_embeds(embeds),
        world.embed(embeds, embeds),
        world.forward([], embeds, [page], mask=[[True] * 4] * 4),
    )


def lost_opaque() -> tuple[World, ErrorRecord]:
    """Program 5 comes back to a page that cannot be read and not be computed again."""
    world = world_with(0, lambda move: move.source[0] == "disk")
    world.program(5)
    opaque_page(world, 5, 40)
    fill(world, 2)
    assert world.pool.num_dropped == 0
    back = world.do(5, world.alloc([41]), world.decode([41], [9], 2, context=[40]))[1]
    assert back.error is not None
    return world, back.error


def test_what_cannot_be_read_nor_computed_again_is_a_retriable_error_that_names_it() -> None:
    world, error = lost_opaque()
    assert (error.code, error.retriable) == ("page_lost", True)
    world.harness.call(ProgramId(5), ResetQueue(QueueId(1)))
    again = world.do(5, world.alloc([42]), world.decode([42], [9], 2, context=[40]))[1]
    assert again.error is not None
    assert (again.error.code, again.error.details) == ("page_lost", {"page": 40})
    world.harness.call(ProgramId(5), ResetQueue(QueueId(1)))
    fine = world.do(5, world.alloc([43]), world.decode([43], [9, 8], 2, context=[]))[1]
    assert fine.tokens == alone([9, 8], 2)
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(5)))
    end_all(world)


def test_an_opaque_page_comes_back_as_it_was() -> None:
    replies = []
    for num_others in (0, 2):
        world = world_with(0)
        world.program(5)
        opaque_page(world, 5, 40)
        fill(world, num_others)
        back = world.do(5, world.alloc([41]), world.decode([41], [9], 2, context=[40]))[1]
        replies.append(back.tokens)
        assert bool(world.pool.num_disk_read) == bool(num_others)
    assert replies[0] == replies[1]


def test_a_lost_engine_has_nothing_on_its_disk() -> None:
    world = world_with(4)
    said = fill(world)
    assert world.pool.num_disk_free < NUM_DISK_BLOCKS
    world.harness.lose_engine(ENGINE)
    assert world.pool.num_disk_free == NUM_DISK_BLOCKS
    world.harness.start_engine(ENGINE, FakeEngine(world.engine.info.pool))
    assert go_on(world, 1, said[1]) == alone(prompt(1), 4)[3:]
    assert world.pool.num_disk_read == 0
    end_all(world)
