"""Threads: what is remembered of those that no queue serves any more is bounded."""

from __future__ import annotations

from control_world import World

from quire.control.programs.threads import MAX_IDLE_THREADS, Threads
from quire.core.calls import CloseQueue
from quire.core.ids import ProgramId, QueueId, ThreadId


def begin(threads: Threads, *numbers: int) -> None:
    for number in numbers:
        threads.begin(ThreadId(number), None, float(number))


def test_those_that_began_first_are_forgotten_and_those_with_a_queue_are_not() -> None:
    threads = Threads(0.0)
    last = 2 * MAX_IDLE_THREADS
    begin(threads, *range(last))
    threads.forget_idle(iter(()))
    assert threads.figures(ThreadId(1)).arrival_s == 1.0, "as many are kept"
    begin(threads, last)
    threads.forget_idle(iter([ThreadId(0), ThreadId(last)]))
    assert threads.num_begun == last + 1
    assert threads.figures(ThreadId(0)).arrival_s == 0.0
    assert threads.figures(ThreadId(last)).arrival_s == last
    first_kept = last - MAX_IDLE_THREADS
    assert threads.figures(ThreadId(first_kept)).arrival_s == first_kept
    assert threads.num_begun == last + 1
    assert threads.figures(ThreadId(first_kept - 1)).arrival_s == 0.0, "it begins with its program"
    assert threads.num_begun == last + 2


def test_threads_with_queues_may_be_more() -> None:
    threads = Threads(0.0)
    numbers = range(1, 2 * MAX_IDLE_THREADS + 2)
    begin(threads, *numbers)
    num_idle = MAX_IDLE_THREADS * 3 // 4
    threads.forget_idle(map(ThreadId, numbers[num_idle:]))
    assert all(threads.figures(ThreadId(number)).arrival_s == number for number in numbers)


def test_a_program_that_names_ever_new_threads_keeps_few() -> None:
    world = World()
    world.program(1, queues=0)
    num_threads = 2 * MAX_IDLE_THREADS + 1
    for number in range(1, num_threads + 1):
        world.queue(1, number, thread=ThreadId(number))
        if number < num_threads:
            world.harness.call(ProgramId(1), CloseQueue(QueueId(number)))
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    assert len(program.threads._figures) == MAX_IDLE_THREADS + 1
    assert ThreadId(num_threads) in program.threads._figures
    assert program.threads.num_begun == num_threads
