"""What a program waits for, case by case."""

from __future__ import annotations

from control_world import ENGINE, World

from quire.control import ProcessRow, WaitsFor
from quire.core.errors import EngineLost
from quire.core.events import EngineDown
from quire.core.ids import ProgramId
from quire.testing.harness import CommandOutcome

PROMPT = [7, 8, 9, 10, 11]
ONE_STEP = {"max_steps_per_message": 1, "run_ahead": False}


def row(world: World, program: int) -> ProcessRow:
    return next(one for one in world.controller.processes() if one.program == program)


def reason(world: World, program: int) -> WaitsFor | None:
    wait = row(world, program).wait
    return None if wait is None else wait.reason


def ask(
    world: World, program: int, num_pages: int = 8, num_prompt: int = 5
) -> list[CommandOutcome]:
    world.program(program)
    pages, prompt = range(num_pages), [program, *range(40, 39 + num_prompt)]
    decode = world.decode(pages, prompt, num_pages * 4 - num_prompt)
    return world.issue(program, world.alloc(pages), decode)


def test_one_without_a_command_waits_for_its_own_program() -> None:
    world = World()
    world.harness.clock.advance(3.0)
    world.program(1)
    wait = row(world, 1).wait
    assert wait is not None
    assert (wait.reason, wait.since_s) == (WaitsFor.PROGRAM, 3.0)


def test_one_that_a_message_carries_waits_for_nothing() -> None:
    world = World(config=ONE_STEP)
    ask(world, 1)
    assert row(world, 1).wait is None
    for _ in range(3):
        world.harness.step()
        assert row(world, 1).wait is None
    world.run()
    assert reason(world, 1) is WaitsFor.PROGRAM


def test_without_a_free_sequence_it_waits_for_a_seat_since_it_came() -> None:
    world = World(config=ONE_STEP, max_sequences=1)
    ask(world, 1)
    world.harness.clock.advance(2.0)
    ask(world, 2)
    world.harness.step()
    assert reason(world, 1) is None
    wait = row(world, 2).wait
    assert wait is not None
    assert (wait.reason, wait.since_s) == (WaitsFor.SEAT, 2.0)


def test_behind_the_message_that_runs_it_waits_for_its_turn() -> None:
    world = World(config=ONE_STEP)
    ask(world, 1)
    ask(world, 2)
    assert reason(world, 2) is WaitsFor.TURN, "a seat is free, and nobody has looked yet"
    world.harness.step()
    assert reason(world, 2) is None


def test_where_its_working_set_has_no_room_it_waits_for_memory() -> None:
    world = World(config={**ONE_STEP, "output_share": 1.0}, num_blocks=10, num_host_blocks=0)
    ask(world, 1, num_pages=8)
    ask(world, 2, num_pages=8)
    world.harness.step()
    assert reason(world, 2) is WaitsFor.MEMORY
    world.run()


def test_while_the_engine_is_down_it_waits_for_the_engine() -> None:
    world = World(config=ONE_STEP)
    world.program(1)
    world.do(1, world.alloc(range(8)))
    error = EngineLost("gone").record()
    world.harness.post(EngineDown(time_s=world.harness.now_s, engine=ENGINE, error=error))
    world.issue(1, world.decode(range(8), PROMPT, 4))
    assert reason(world, 1) is WaitsFor.ENGINE


def test_behind_a_command_of_another_queue_it_waits_for_the_command() -> None:
    world = World(config=ONE_STEP, max_sequences=1)
    ask(world, 1)
    world.program(2, queues=2)
    first = world.decode(range(4), PROMPT, 4)
    world.issue(2, world.alloc(range(8)), first)
    world.issue(2, world.decode(range(4, 8), PROMPT, 4, after=(first.id,)), queue=2)
    program = world.controller._table.get(ProgramId(2))
    assert program is not None
    head = program.entries[first.id]
    assert reason(world, 2) is WaitsFor.SEAT, "the oldest of its commands says why"
    del program.entries[first.id]
    assert reason(world, 2) is WaitsFor.COMMAND
    program.entries[first.id] = head


def test_what_names_pages_that_come_back_waits_for_these_pages() -> None:
    world = World(config=ONE_STEP)
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 4))
    ask(world, 2)
    (page, *_) = world.controller._table.programs()[0].pages.values()
    assert page.content is not None
    world.issue(1, world.decode(range(8), PROMPT, 4, position=8, context=list(range(8))))
    assert reason(world, 1) is WaitsFor.TURN
    scheduler = world.controller._schedulers[ENGINE]
    scheduler.planner.seating.give_free_seats()
    page.content.is_restoring = True
    assert reason(world, 1) is WaitsFor.PAGES


def test_a_row_says_where_a_program_runs_and_what_stands_open() -> None:
    world = World(config=ONE_STEP, max_sequences=1)
    ask(world, 1)
    ask(world, 2)
    world.harness.step()
    assert row(world, 2).engines == (ENGINE,)
    assert (row(world, 2).num_calls, row(world, 2).level) == (1, 0)
    world.run()
    assert (row(world, 2).num_calls, row(world, 2).level) == (0, None)
