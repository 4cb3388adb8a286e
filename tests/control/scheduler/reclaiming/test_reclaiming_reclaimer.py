"""Moving out what programs hold: whose pages go, and who is not even looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from control_world import ENGINE, World

from quire.control.programs.program import Program
from quire.control.scheduler.reclaiming.claim import Claim
from quire.core.ids import ProgramId


def program_of(world: World, number: int) -> Program:
    program = world.controller._table.get(ProgramId(number))
    assert program is not None
    return program


@pytest.mark.parametrize("num_blocks", [3, 4])
def test_nobody_is_looked_at_behind_the_one_that_makes_it_enough(num_blocks: int) -> None:
    """Each of the others holds two blocks."""
    world = World(num_blocks=32, num_host_blocks=32)
    for number in (1, 2, 3):
        world.program(number)
        world.do(number, world.alloc([0, 1]), world.decode([0, 1], [number, 7, 8, 9, 10], 2))
    world.issue(1, world.alloc([5]), world.decode([5], [1, 2], 2))
    (requester,) = program_of(world, 1).entries.values()
    claim = Claim(requester, None, lambda program: [], [])
    asked: list[int] = []

    def programs() -> Iterator[Program]:
        for number in (2, 3, 1):
            asked.append(number)
            yield program_of(world, number)

    reclaimer = world.controller._schedulers[ENGINE].planner.reclaimer
    assert reclaimer._move_out(programs(), num_blocks, claim)
    assert asked == [2, 3]
    num_moving = len(world.controller._engines[ENGINE].memory.transfers)
    assert num_moving == num_blocks
