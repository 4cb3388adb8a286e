"""Fine-tier commands that are sent behind a message in flight."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World

from benchmarks.pie.dispatch_policies import KOnly
from quire.core.batch import Batch
from quire.core.calls import CloseQueue, Issue, ResetQueue
from quire.core.commands import EmbedText
from quire.core.errors import InvalidArgument
from quire.core.events import Called
from quire.core.ids import CommandId, EmbedId, PageId, ProgramId, QueueId, TokenSlotId
from quire.testing.harness import CommandOutcome

PAGES = range(1, 5)
SLOT = TokenSlotId(1)


class Loop:
    """A program whose steps name the token of the step before by its slot."""

    def __init__(self, world: World, program: int) -> None:
        self.world, self.program, self.position = world, program, 0
        world.program(program)
        world.do(program, world.alloc(PAGES), world.alloc_embeds([1]))

    def step(self, *, more: bool = False) -> list[CommandOutcome]:
        """Embed (the first token, or the one in the slot), run, sample into the slot. ``more``: of
        other programs, at the same moment."""
        world, at = self.world, self.position
        self.position += 1
        embed: Any = world.embed([1], [3], at)
        if at:
            embed = EmbedText(
                id=CommandId(world.id()),
                tokens=[0],
                positions=[at],
                embeds=[EmbedId(1)],
                token_slots=[SLOT],
            )
        commands = [
            embed,
            world.forward(PAGES, [1], PAGES, [1]),
            world.sample([1], at + 1, token_slots=[SLOT]),
        ]
        harness, program = world.harness, ProgramId(self.program)
        harness.post(
            Called(
                time_s=harness.now_s, program=program, call=Issue(QueueId(1), commands), more=more
            )
        )
        return [harness.outcomes[program, command.id] for command in commands]


def loops(num_programs: int, **config: Any) -> tuple[World, list[Loop]]:
    """Programs whose first steps stand in one message in flight."""
    world = World(config=config)
    programs = [Loop(world, number) for number in range(1, num_programs + 1)]
    world.harness.dispatched.clear()
    for loop in programs:
        loop.step(more=loop is not programs[-1])
    assert world.harness.num_in_flight(ENGINE) == 1
    return world, programs


def messages(world: World) -> list[Batch]:
    return [dispatch.batch for dispatch in world.harness.dispatched]


def test_the_next_step_of_all_goes_behind_the_one_in_flight() -> None:
    world, programs = loops(2)
    for loop in programs:
        loop.step()
    assert world.harness.num_in_flight(ENGINE) == 2
    ahead = messages(world)[-1]
    assert ahead.forward is not None
    assert len(ahead.forward.tables) == 2
    assert ahead.embeds is not None
    assert all(token < 0 for token in ahead.embeds.tokens.tolist()), "the host has not seen them"


def test_nobody_is_sent_ahead_of_a_program_that_has_not_issued() -> None:
    world, programs = loops(2)
    programs[0].step()
    assert world.harness.num_in_flight(ENGINE) == 1
    programs[1].step()
    assert world.harness.num_in_flight(ENGINE) == 2


@pytest.mark.parametrize("config", [{"run_ahead": False}, {"dispatch": KOnly(1)}])
def test_run_ahead_can_be_turned_off(config: dict[str, Any]) -> None:
    world, programs = loops(1, **config)
    programs[0].step()
    programs[0].step()
    assert world.harness.num_in_flight(ENGINE) == 1


def test_tokens_are_those_of_a_loop_that_waits() -> None:
    def tokens(ahead: bool) -> list[list[int]]:
        world, programs = loops(2, run_ahead=ahead)
        outcomes = [loop.step() for _ in range(5) for loop in programs]
        world.run()
        assert all(outcome.status == "done" for step in outcomes for outcome in step)
        return [step[-1].reply.token_ids for step in outcomes]

    assert tokens(ahead=True) == tokens(ahead=False)


def test_what_was_sent_ahead_of_a_failure_fails_and_leaves_the_pages_as_they_were() -> None:
    world, (loop,) = loops(1)
    world.harness.step_engine(ENGINE)  # one token stands in the page
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    first, second = loop.step(), loop.step()
    assert world.harness.num_in_flight(ENGINE) == 2
    world.engine.fail_row(messages(world)[-2].serial, "forward", 0, InvalidArgument("injected"))
    world.run()
    assert [outcome.status for outcome in first] == ["done", "failed", "failed"]
    assert [outcome.status for outcome in second] == ["failed"] * 3
    assert program.pages[PageId(1)].fill == 1
    world.harness.call(ProgramId(1), ResetQueue(QueueId(1)))
    again = world.do(1, world.embed([1], [3], 1), world.forward(PAGES, [1], PAGES, [1]))
    assert [outcome.status for outcome in again] == ["done", "done"]
    assert program.pages[PageId(1)].fill == 2


def test_a_queue_that_closes_with_two_messages_in_flight_frees_everything() -> None:
    world, (loop,) = loops(1)
    loop.step()
    assert world.harness.num_in_flight(ENGINE) == 2
    world.harness.call(ProgramId(1), CloseQueue(QueueId(1)))
    world.run()
    assert world.figures.num_free_embeds == world.engine.info.pool.num_embeds
    assert world.pool.num_free + world.figures.prefix.num_cached == world.pool.num_blocks


def test_what_was_sent_ahead_of_a_failed_sample_leaves_the_pages_as_they_were() -> None:
    world, (loop,) = loops(1)
    world.harness.step_engine(ENGINE)  # one token stands in the page
    program = world.controller._table.get(ProgramId(1))
    assert program is not None
    first, second = loop.step(), loop.step()
    assert world.harness.num_in_flight(ENGINE) == 2
    world.engine.fail_row(messages(world)[-2].serial, "samples", 0, InvalidArgument("injected"))
    world.run()
    assert [outcome.status for outcome in first] == ["done", "done", "failed"]
    assert [outcome.status for outcome in second] == ["failed"] * 3
    assert program.pages[PageId(1)].fill == 2, "of the first step alone"


@pytest.mark.parametrize("run_ahead", [False, True])
def test_a_long_decode_takes_whole_steps_to_its_end(run_ahead: bool) -> None:
    """What is in flight counts against its budget until it is read, and no longer."""
    world = World(config={"run_ahead": run_ahead, "max_steps_per_message": 4})
    world.program()
    pages = range(12)
    decode = world.do(1, world.alloc(pages), world.decode(pages, [1, 2, 3], 41))[1]
    assert len(decode.tokens) == 41
    steps = [batch.num_steps for batch in messages(world)]
    assert set(steps[3:-1]) == {4}, "the prompt, one step alone, and another sent meanwhile"
