"""Prompts that are sent behind prompts, shortly before these are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from control_world import ENGINE, World

from benchmarks.pie.dispatch_policies import TOnly
from quire.core.batch import Batch
from quire.core.calls import Cancel, Issue
from quire.core.commands import Command
from quire.core.events import Called, ProgramEnded, Tick
from quire.core.ids import ProgramId, QueueId
from quire.testing.harness import CommandOutcome

PAGE, CHUNK = 16, 64
POOL = {"page_size": PAGE, "num_blocks": 256, "max_batch_tokens": CHUNK}
LATE, EARLY = 0.9, 0.3
"""Shares of the running message's time."""


def world_of(**config: Any) -> World:
    """The time of prompts and of steps has been measured."""
    world = World(config=config, **POOL)
    world.program(100)
    world.do(100, world.alloc(range(90, 96)), world.decode(range(90, 96), range(48), 8))
    world.harness.dispatched.clear()
    return world


def prompt(program: int, num_tokens: int = CHUNK) -> list[int]:
    return [(7 * program + token) % 50 for token in range(num_tokens)]


def ask(world: World, *prompts: Sequence[int], max_tokens: int = 4) -> list[CommandOutcome]:
    """One program for each prompt, all at the same moment."""
    harness, outcomes = world.harness, []
    for program in range(1, len(prompts) + 1):
        world.program(program)
    for program, tokens in enumerate(prompts, 1):
        pages = range(1, 1 + -(-(len(tokens) + max_tokens) // PAGE))
        commands: list[Command] = [world.alloc(pages), world.decode(pages, tokens, max_tokens)]
        event = Called(
            time_s=harness.now_s,
            program=ProgramId(program),
            call=Issue(QueueId(1), commands),
            more=program < len(prompts),
        )
        harness.post(event)
        outcomes.append(harness.outcomes[ProgramId(program), commands[1].id])
    return outcomes


def look(world: World, share: float) -> int:
    """Control looks again when ``share`` of the running message's time has passed; how many
    messages are in flight then. A prompt token and a step take the fake engine equally long."""
    (running, *_) = world.controller._engines[ENGINE].in_flight
    elapsed_s = world.engine._step_time.elapsed_s(running.num_tokens)
    world.harness.clock.advance(share * elapsed_s)
    world.harness.post(Tick(time_s=world.harness.now_s))
    return world.harness.num_in_flight(ENGINE)


def messages(world: World) -> list[Batch]:
    return [dispatch.batch for dispatch in world.harness.dispatched]


def test_prompts_that_fill_a_message_go_behind_the_running_one() -> None:
    world = world_of()
    ask(world, *map(prompt, range(1, 4)))
    assert look(world, EARLY) == 1, "what comes meanwhile may still go first"
    assert look(world, LATE) == 2
    first, second = messages(world)
    assert first.forward is not None
    assert second.forward is not None
    assert len(second.forward.tokens) == CHUNK - 1
    assert second.advance is not None, "the first prompt's decode goes on next to it"
    assert look(world, LATE) == 2, "one message waits, not more"


def test_prompts_that_leave_room_wait_for_whoever_comes() -> None:
    world = world_of()
    ask(world, prompt(1), prompt(2, CHUNK // 2))
    assert look(world, LATE) == 1


def test_a_prompt_that_begins_as_one_in_flight_waits_for_its_pages() -> None:
    world = world_of()
    same = prompt(1)
    _, other = ask(world, same, [*same[: 2 * PAGE], *prompt(3)])
    assert look(world, LATE) == 1
    world.run()
    assert other.chunks[0].num_cached_tokens == 2 * PAGE


def test_a_prompt_longer_than_a_message_goes_on_behind_itself() -> None:
    world = world_of()
    tokens = prompt(1, 3 * CHUNK)
    (outcome,) = ask(world, tokens)
    assert look(world, LATE) == 2
    world.run()
    slow = world_of(run_ahead=False)
    (expected,) = ask(slow, tokens)
    slow.run()
    assert outcome.tokens == expected.tokens
    assert len(outcome.tokens) == 4


@pytest.mark.parametrize("config", [{"run_ahead": False}, {"dispatch": TOnly(0.0)}])
def test_it_can_be_turned_off(config: dict[str, Any]) -> None:
    world = world_of(**config)
    ask(world, *map(prompt, range(1, 4)))
    assert look(world, LATE) == 1


def test_nothing_is_planned_ahead_of_the_first_measurement() -> None:
    world = World(**POOL)
    ask(world, *map(prompt, range(1, 4)))
    assert look(world, LATE) == 1


def test_tokens_are_those_of_prompts_that_wait() -> None:
    def tokens(ahead: bool) -> list[list[int]]:
        world = world_of(run_ahead=ahead)
        outcomes = ask(world, *(prompt(program, 100) for program in range(1, 6)), max_tokens=6)
        while world.controller._engines[ENGINE].in_flight:
            look(world, LATE)
            world.harness.step_engine(ENGINE)
        world.run()
        return [outcome.tokens for outcome in outcomes]

    assert tokens(ahead=True) == tokens(ahead=False)
    assert all(len(one) == 6 for one in tokens(ahead=True))


def test_what_is_cancelled_with_two_messages_in_flight_frees_everything() -> None:
    world = world_of()
    outcomes = ask(world, *(prompt(program, 100) for program in range(1, 4)))
    assert look(world, LATE) == 2
    for program, outcome in enumerate(outcomes, 1):
        event = Called(
            time_s=world.harness.now_s, program=ProgramId(program), call=Cancel(outcome.command.id)
        )
        world.harness.post(event)
    world.run()
    assert {outcome.status for outcome in outcomes} == {"cancelled"}
    assert world.figures.num_open_sequences == 0
    assert world.figures.num_in_flight == 0
    world.controller.check_invariants()


def test_who_has_no_room_is_not_passed_by() -> None:
    """The second long prompt has no room beside the first: what stands behind the running message
    are the first one's steps, and none of the short prompts that would fit."""
    world = World(page_size=PAGE, num_blocks=8, max_batch_tokens=CHUNK)
    world.program(100)
    world.do(100, world.alloc(range(90, 94)), world.decode(range(90, 94), range(48), 8))
    world.do(100, world.dealloc(range(90, 94)))
    world.harness.dispatched.clear()
    short = [prompt(number, PAGE) for number in range(3, 9)]
    outcomes = ask(world, prompt(1), prompt(2), *short)
    assert look(world, LATE) == 2
    assert messages(world)[-1].forward is None
    while world.harness.step():
        for program, outcome in enumerate(outcomes, 1):
            if outcome.status == "done":  # of one that has ended nothing ends again
                now_s = world.harness.now_s
                world.harness.post(ProgramEnded(time_s=now_s, program=ProgramId(program)))
    assert all(len(outcome.tokens) == 4 for outcome in outcomes)
