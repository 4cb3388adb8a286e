"""Commands of spare queues run while nothing else wants the engine, whoever asks for it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from control_world import World, alone

from quire.core.calls import SPARE_PRIORITY, Cancel, CloseQueue, SetQueuePriority
from quire.core.config import TenantConfig
from quire.core.ids import CommandId, ProgramId, QueueId, TenantId, ThreadId
from quire.core.quotas import Quotas
from quire.testing.harness import CommandOutcome

POOL = {"num_blocks": 512, "num_host_blocks": 512}
OTHER = 1
"""The queue of a program whose commands are not spare."""
SPARE = 2
LONG = 40


def world_of(**settings: Any) -> World:
    tenants = (TenantConfig(id=TenantId("t")), TenantConfig(id=TenantId("u"), weight=0.01))
    return World(config={"max_steps_per_message": 1, **settings}, tenants=tenants, **POOL)


def begin(world: World, program: int, **fields: Any) -> None:
    world.program(program, **fields)
    world.queue(program, SPARE, priority=SPARE_PRIORITY)


def prompt(program: int, queue: int) -> list[int]:
    return [program, queue, *range(40, 44)]


def ask(world: World, program: int, queue: int, max_tokens: int, first: int = 0) -> CommandOutcome:
    pages = range(first, first + -(-(6 + max_tokens) // 4))
    decode = world.decode(pages, prompt(program, queue), max_tokens)
    return world.issue(program, world.alloc(pages), decode, queue=queue)[1]


def steps(world: World, count: int) -> None:
    for _ in range(count):
        assert world.harness.step()


def is_answered(outcome: CommandOutcome, program: int, queue: int, max_tokens: int) -> bool:
    return outcome.tokens == alone(prompt(program, queue), max_tokens, **POOL)


def test_spare_work_stops_while_anything_else_runs_and_goes_on_behind_it() -> None:
    world = world_of()
    begin(world, 1)
    begin(world, 2, tenant="u")
    spare = ask(world, 1, SPARE, LONG)
    steps(world, 5)
    num_before = len(spare.tokens)
    assert 0 < num_before < LONG
    other = ask(world, 2, OTHER, LONG)  # of a tenant with a hundredth of the share
    steps(world, 3)
    assert other.tokens, "whoever comes waits for the message in flight at most"
    num_at = len(spare.tokens)
    assert num_at <= num_before + 1
    while other.status == "pending":
        assert len(spare.tokens) == num_at, "a message carries spare work beside other work"
        assert world.harness.step()
    world.run()
    assert is_answered(other, 2, OTHER, LONG)
    assert is_answered(spare, 1, SPARE, LONG)


def test_nothing_spare_is_sent_behind_a_message_in_flight() -> None:
    world = world_of()
    begin(world, 1)
    ask(world, 1, SPARE, LONG)
    steps(world, 6)
    assert world.figures.num_in_flight == 1
    ask(world, 1, OTHER, LONG, first=50)
    steps(world, 6)
    assert world.figures.num_in_flight == 2, "other work runs ahead"


def test_many_steps_of_other_work_stay_in_one_message_while_spare_work_waits() -> None:
    def num_messages(has_spare: bool) -> int:
        world = world_of(step_quantum_s=1.0, max_steps_per_message=16)
        begin(world, 1)
        other = ask(world, 1, OTHER, 96)
        if has_spare:
            ask(world, 1, SPARE, LONG, first=50)
        while other.status == "pending":
            assert world.harness.step()
        return len(world.harness.dispatched)

    assert num_messages(True) == num_messages(False) + 1, "the first spare one behind its end"


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_becomes_wanted_goes_with_the_others(has_begun: bool) -> None:
    world = world_of()
    begin(world, 1)
    begin(world, 2)
    if has_begun:
        spare = ask(world, 1, SPARE, LONG)
        steps(world, 4)
        other = ask(world, 2, OTHER, LONG)
    else:
        other = ask(world, 2, OTHER, LONG)
        spare = ask(world, 1, SPARE, LONG)
    steps(world, 4)
    num_before = len(spare.tokens)
    world.harness.call(ProgramId(1), SetQueuePriority(QueueId(SPARE), 0))
    steps(world, 6)
    assert other.status == "pending"
    assert len(spare.tokens) > num_before, "it runs beside the others now"
    world.run()
    assert is_answered(spare, 1, SPARE, LONG)
    assert is_answered(other, 2, OTHER, LONG)


@pytest.mark.parametrize("how", ["cancel", "close", "end"])
@pytest.mark.parametrize("where", ["runs", "parked", "waits"])
def test_spare_work_may_be_cancelled_at_any_time(how: str, where: str) -> None:
    world = world_of()
    begin(world, 1)
    if where == "waits":
        ask(world, 1, OTHER, LONG, first=50)
    spare = ask(world, 1, SPARE, LONG)
    steps(world, 4)
    if where == "parked":
        ask(world, 1, OTHER, LONG, first=50)
        steps(world, 4)
    if how == "cancel":
        world.harness.call(ProgramId(1), Cancel(CommandId(spare.command.id)))
    elif how == "close":
        world.harness.call(ProgramId(1), CloseQueue(QueueId(SPARE)))
    else:
        world.queue(1, SPARE, priority=SPARE_PRIORITY)
    world.run()
    assert spare.status == ("done" if how == "end" else "cancelled")


def test_a_program_whose_tokens_are_bounded_generates_none_in_spare_time() -> None:
    world = world_of()
    begin(world, 1, quotas=Quotas(max_generated_tokens=LONG))
    world.queue(1, 3, priority=SPARE_PRIORITY)
    pages = range(50, 60)
    computed = world.issue(1, world.alloc(pages), world.decode(pages, range(20), 0), queue=3)
    spare = ask(world, 1, SPARE, 4)
    world.run()
    assert computed[1].status == "done"
    assert spare.error is not None
    assert spare.error.code == "never_within_quota"
    assert "spare time" in spare.error.message
    other = ask(world, 1, OTHER, LONG, first=100)
    world.run()
    assert is_answered(other, 1, OTHER, LONG), "nothing of its quota is used up"


def test_spare_work_takes_no_memory_from_others() -> None:
    world = World(config={"max_steps_per_message": 1}, num_blocks=16, num_host_blocks=0)
    begin(world, 1)
    world.do(1, world.alloc(range(12)), world.decode(range(12), range(44), 4))
    begin(world, 2)
    spare = ask(world, 2, SPARE, LONG)
    world.run()
    assert spare.status == "failed"
    assert spare.error is not None
    assert spare.error.code == "pool_exhausted"


@pytest.mark.parametrize("policy", ["fcfs", "topology", "plas", "quire"])
@pytest.mark.parametrize("seed", range(6))
def test_everything_is_answered_as_if_it_ran_alone(policy: str, seed: int) -> None:
    drawn = Random(seed)
    world = world_of(policy=policy, max_steps_per_message=drawn.choice([1, 4]))
    asked: list[tuple[CommandOutcome, int, int, int]] = []
    for program in range(1, 9):
        begin(world, program, tenant=drawn.choice("tu"))
    for _ in range(24):
        program, queue = drawn.randint(1, 8), drawn.choice([OTHER, SPARE])
        if any(one[1:3] == (program, queue) for one in asked):
            queue = 0
        if queue:
            length = drawn.randint(1, LONG)
            first = 20 * queue
            asked.append((ask(world, program, queue, length, first), program, queue, length))
        if drawn.random() < 0.3:
            priority = drawn.choice([0, 3, SPARE_PRIORITY])
            call = SetQueuePriority(QueueId(SPARE), priority)
            world.harness.call(ProgramId(drawn.randint(1, 8)), call)
        for _ in range(drawn.randint(0, 6)):
            world.harness.step()
    world.run()
    assert all(is_answered(*one) for one in asked), asked


def test_spare_time_counts_neither_as_service_nor_as_waiting() -> None:
    """Nobody else would have had it, so policies do not put the program behind others for it."""
    world = world_of(policy="plas")
    begin(world, 1)
    begin(world, 2, tenant="u")
    other = ask(world, 2, OTHER, 10)
    spare = ask(world, 1, SPARE, LONG)
    world.run()
    assert other.status == "done"
    assert is_answered(spare, 1, SPARE, LONG)
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    thread = program.threads.figures(ThreadId(0))
    for figures in (program.figures, program.family_figures, thread):
        assert (figures.service_s, figures.service_tokens, figures.waiting_s) == (0.0, 0, 0.0)
        assert (figures.generated_tokens, figures.path_s, figures.path_tokens) == (0, 0.0, 0)
    assert program.cost_s > 0, "what it took of the engine"
    assert program.num_generated_tokens == LONG


@pytest.mark.parametrize("queue", [SPARE, OTHER])
def test_a_message_with_two_commands_of_a_program_counts_what_is_not_spare(queue: int) -> None:
    world = world_of()
    begin(world, 1)
    one, two = (ask(world, 1, SPARE, 6), ask(world, 1, queue, 6, first=50))
    world.run()
    assert one.status == two.status == "done"
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    assert (program.figures.service_s > 0) == (queue == OTHER)
    assert program.figures.service_tokens == (6 + 5 if queue == OTHER else 0)
