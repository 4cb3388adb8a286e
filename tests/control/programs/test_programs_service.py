"""Service, cost and waiting: of a program, of its threads, and across a preemption."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World

from quire.control.programs.program import Program
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId, ThreadId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.engine import StepTime

STEP = {"max_steps_per_message": 1, "run_ahead": False}


def make_world(**pool: Any) -> World:
    """Every message takes a second."""
    return World(
        engine=FakeEngine(fake_pool(**pool), step_time=StepTime(base_s=1.0, per_token_s=0.0)),
        config=STEP,
    )


def program_of(world: World, program: int) -> Program:
    found = world.controller._table.get(ProgramId(program))
    assert found is not None
    return found


def begin(world: World, program: int, num_tokens: int, queue: int = 1, first: int = 0) -> Any:
    pages = range(first, first + 8)
    world.issue(program, world.alloc(pages), queue=queue)
    [outcome] = world.issue(
        program, world.decode(pages, [program, queue, 3], num_tokens), queue=queue
    )
    return outcome


def test_service_is_the_time_of_messages_and_cost_a_share_of_it() -> None:
    world = make_world()
    for program in (1, 2):
        world.program(program)
        begin(world, program, 4)
    world.run()
    one, two = program_of(world, 1), program_of(world, 2)
    elapsed_s = world.harness.now_s
    assert one.cost_s + two.cost_s == pytest.approx(elapsed_s)
    # the first prompt goes alone, and the second joins: all but one message carries both
    assert one.figures.service_s == elapsed_s - 1
    assert two.figures.service_s == elapsed_s - 1
    assert one.figures.service_tokens == 3 + 3, "the prompt, and a row for each further token"
    assert one.family_figures.generated_tokens == 4


def test_a_message_counts_once_for_a_program_and_for_each_of_its_threads() -> None:
    world = make_world()
    world.program(1, queues=0)
    world.queue(1, 1, thread=ThreadId(7))
    world.queue(1, 2, thread=ThreadId(8))
    begin(world, 1, 3)
    begin(world, 1, 6, queue=2, first=10)
    world.run()
    program = program_of(world, 1)
    first, second = (program.threads.figures(ThreadId(number)) for number in (7, 8))
    assert program.figures.service_s == world.harness.now_s
    assert first.service_s < second.service_s < program.figures.service_s + 1
    assert first.service_tokens + second.service_tokens == program.figures.service_tokens
    assert first.completion_s is not None
    assert second.completion_s is not None
    assert first.completion_s < second.completion_s == program.figures.completion_s


def path_of(world: World, program: int) -> tuple[int, float]:
    figures = program_of(world, program).figures
    return figures.path_tokens, figures.path_s


def test_a_program_knows_which_thread_of_its_parent_launched_it() -> None:
    world = World()
    world.program(1)
    world.program(2, parent=ProgramId(1), parent_thread=ThreadId(7))
    figures = program_of(world, 2).figures
    assert (figures.parent, figures.parent_thread) == (1, 7)
    assert program_of(world, 1).figures.parent_thread is None


def test_the_critical_path_is_the_longest_chain_of_calls() -> None:
    """Two calls side by side, the second one longer, and one behind both."""
    world = make_world()
    world.program(1, queues=2)
    begin(world, 1, 3)
    begin(world, 1, 6, queue=2, first=10)
    assert path_of(world, 1) == (0, 0.0)
    world.run()
    assert path_of(world, 1) == (3 + 5, 6.0), (
        "the prompt of three, and a row for each further token"
    )
    assert program_of(world, 1).figures.service_tokens == (3 + 2) + (3 + 5)
    begin(world, 1, 2, first=20)
    world.run()
    assert path_of(world, 1) == (8 + 3 + 1, 6.0 + 2.0)


def test_a_launched_program_continues_the_path_and_its_end_passes_it_on() -> None:
    world = make_world()
    world.program(1)
    begin(world, 1, 3)
    world.run()
    for child in (2, 3):
        world.program(child, parent=ProgramId(1))
        begin(world, child, 2 * child)
    assert path_of(world, 2) == path_of(world, 1) == (5, 3.0)
    world.run()
    family = program_of(world, 1).family_figures
    assert path_of(world, 3)[0] == 5 + 3 + 5
    assert path_of(world, 1)[0] == 5, "its children have not ended"
    assert family.path_tokens == 5 + 3 + 5
    for child in (3, 2):
        world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(child)))
    assert path_of(world, 1)[0] == 5 + 3 + 5


def test_a_family_is_served_and_waits_as_one_program() -> None:
    """And keeps the figures of those who have ended; a program of another tenant is no parent."""
    world = make_world(max_sequences=1)
    world.program(1)
    world.program(2, parent=ProgramId(1))
    world.program(3, parent=ProgramId(2))
    begin(world, 1, 3)
    begin(world, 3, 4)
    world.run()
    root, last = program_of(world, 1), program_of(world, 3)
    family = root.family_figures
    assert last.family_figures is family
    assert family.service_tokens == (3 + 2) + (3 + 3)
    assert family.service_s == root.figures.service_s + last.figures.service_s
    assert family.waiting_s == last.figures.waiting_s == 3.0
    for ended in (2, 3):
        world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(ended)))
    world.program(4, parent=ProgramId(1))
    assert program_of(world, 4).family_figures.service_tokens == family.service_tokens > 5
    world.program(5, parent=ProgramId(1), tenant="other")
    world.program(6, parent=ProgramId(77))
    assert program_of(world, 5).family_figures.service_tokens == 0
    assert program_of(world, 6).family_figures is not family


def test_a_message_counts_once_for_a_family() -> None:
    world = make_world()
    world.program(1)
    world.program(2, parent=ProgramId(1))
    begin(world, 1, 4)
    begin(world, 2, 4)
    world.run()
    assert program_of(world, 1).family_figures.service_s == world.harness.now_s


def test_a_thread_begins_with_its_first_queue_and_knows_where_it_was_forked() -> None:
    world = make_world()
    world.program(1, queues=0)
    world.harness.clock.advance(2.0)
    world.queue(1, 1, thread=ThreadId(7))
    world.harness.clock.advance(3.0)
    world.queue(1, 2, thread=ThreadId(8), parent_thread=ThreadId(7))
    world.queue(1, 3, thread=ThreadId(7), parent_thread=ThreadId(7))
    world.queue(1, 4, thread=ThreadId(8))
    program = program_of(world, 1)
    first, second = (program.threads.figures(ThreadId(number)) for number in (7, 8))
    assert (first.arrival_s, first.parent) == (2.0, None), "no thread is its own parent"
    assert (second.arrival_s, second.parent) == (5.0, 7)


def test_what_stands_behind_others_of_its_queue_waits_for_them_and_not_for_the_engine() -> None:
    world = make_world()
    world.program(1)
    first, second = begin(world, 1, 4), begin(world, 1, 4, first=10)
    world.run()
    assert (first.status, second.status) == ("done", "done")
    assert program_of(world, 1).figures.waiting_s == 0.0


def test_who_waits_for_a_sequence_is_charged_the_wait() -> None:
    world = make_world(max_sequences=1)
    for program in (1, 2):
        world.program(program)
        begin(world, program, 5)
    world.run()
    assert program_of(world, 1).figures.waiting_s == 0
    assert program_of(world, 2).figures.waiting_s == 5, "one prompt and four steps"


def test_what_stands_behind_its_own_queue_does_not_wait() -> None:
    world = make_world()
    world.program(1)
    begin(world, 1, 5)
    world.issue(1, world.decode(range(10, 14), [9, 9, 9], 5, context=range(10, 14)))
    world.do(1, world.alloc(range(20, 21)))
    begin(world, 1, 2, first=30)
    world.run()
    assert program_of(world, 1).figures.waiting_s == 0


def test_waiting_goes_on_after_a_preemption() -> None:
    """One sequence: the second program displaces the first one, which waits until it is done."""
    world = make_world(max_sequences=1)
    world.program(1)
    first = begin(world, 1, 25)
    world.program(2, priority=1)
    second = begin(world, 2, 5)
    world.run()
    assert (len(first.tokens), len(second.tokens)) == (25, 5)
    displaced = program_of(world, 1)
    assert displaced.num_preemptions == 1
    assert displaced.figures.waiting_s == program_of(world, 2).figures.service_s == 5


def test_what_is_computed_again_is_charged_to_whom_it_is_for() -> None:
    world = make_world()
    world.program(1)
    size = world.engine.info.pool.page_size
    pages = range(4)
    world.do(1, world.alloc(pages), world.decode(pages, range(2 * size), 0))
    before = program_of(world, 1).figures.service_tokens
    world.harness.lose_engine(ENGINE)
    world.harness.start_engine(
        ENGINE, FakeEngine(fake_pool(), step_time=StepTime(base_s=1.0, per_token_s=0.0))
    )
    world.do(1, world.decode(pages, [1], 0, position=2 * size))
    figures = program_of(world, 1).figures
    assert figures.service_tokens - before == 2 * size + 1
