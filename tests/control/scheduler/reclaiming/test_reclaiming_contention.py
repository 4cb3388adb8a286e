"""Too little memory: who gives way, in which order, and that nobody notices but by the clock."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import World, alone

from quire.core import commands as c
from quire.core.calls import CloseQueue
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.events import Called, ProgramEnded
from quire.core.ids import ProgramId, QueueId
from quire.testing.harness import CommandOutcome


def prompt(program: int, length: int = 9) -> list[int]:
    return [program, *range(50, 50 + length - 1)]


def fill_pool(world: World, program: int, first_page: int, length: int = 16) -> CommandOutcome:
    """A finished decode whose pages stay: ``length`` slots of opaque or canonical content."""
    pages = range(first_page, first_page + length // 4)
    decode = world.decode(pages, prompt(program, length - 3), 3)
    return world.do(program, world.alloc(pages), decode)[1]


def test_idle_programs_pages_go_to_the_host_and_come_back_unnoticed() -> None:
    world = World(num_blocks=8, num_host_blocks=32)
    first = {}
    for program in range(1, 6):
        world.program(program)
        first[program] = fill_pool(world, program, 0)
        assert first[program].tokens == alone(prompt(program, 13), 3)
    assert world.pool.num_swapped_out > 0
    for program in range(1, 6):
        more = world.do(
            program,
            world.alloc([4]),
            c.Decode(
                id=world.id(),
                context=[0, 1, 2, 3],
                output=[3, 4],
                tokens=[first[program].tokens[-1]],
                position=15,
                sampler=SamplerSpec(),
                stop=StopSpec(max_tokens=3),
            ),
        )[1]
        assert more.tokens == alone(prompt(program, 13) + first[program].tokens, 3)
    rows = {row.program: row for row in world.controller.processes()}
    assert sum(row.num_device_blocks for row in rows.values()) <= 8
    assert sum(row.num_host_blocks for row in rows.values()) > 0


@pytest.mark.parametrize("num_host_blocks", [0, 3, 64])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("policy", ["fcfs", "round_robin"])
def test_every_decode_of_an_oversubscribed_pool_gives_its_own_tokens(
    num_host_blocks: int, page_size: int, policy: str
) -> None:
    """Without a host tier canonical pages are dropped and computed again."""
    world = World(
        num_blocks=32 // page_size,
        num_host_blocks=num_host_blocks,
        page_size=page_size,
        max_batch_tokens=16,
        config={"policy": policy},
    )
    decodes = {}
    num_pages = -(-24 // page_size)
    for program in range(1, 6):
        world.program(program, tenant=f"t{program}")
        pages = range(num_pages)
        decodes[program] = world.issue(
            program, world.alloc(pages), world.decode(pages, prompt(program), 15)
        )[1]
    world.run()
    for program, decode in decodes.items():
        assert decode.status == "done", decode.error
        assert decode.tokens == alone(prompt(program), 15)
    assert world.figures.num_preemptions > 0
    if num_host_blocks == 0:
        assert world.pool.num_swapped_out == 0
        assert world.pool.num_dropped > 0


def test_the_oldest_program_is_never_preempted() -> None:
    world = World(num_blocks=8, num_host_blocks=32, config={"policy": "round_robin"})
    for program in (1, 2, 3):
        world.program(program)
        world.issue(program, world.alloc(range(6)), world.decode(range(6), prompt(program), 14))
    world.run()
    rows = {row.program: row.num_preemptions for row in world.controller.processes()}
    assert rows[1] == 0
    assert rows[2] + rows[3] > 0


def test_sampled_pages_without_known_tokens_survive_by_swapping() -> None:
    """Opaque pages (behind a mask) cannot be computed again: they move, and come back exact."""
    world = World(num_blocks=6, num_host_blocks=6)
    world.program(1)
    world.program(2)
    mask = [[True, False, True, False]] * 4
    world.do(
        1,
        world.alloc([0, 1]),
        world.alloc_embeds(range(5)),
        world.embed(range(4), range(4)),
        world.forward([], range(4), [0], mask=mask),
    )

    def look() -> Any:
        return world.do(
            1,
            world.embed([4], [9], 4),
            world.forward([0], [4], [], [4]),
            c.GetNextDist(id=world.id(), embeds=[4], top_k=4),
        )[2].reply

    before = look()
    fill_pool(world, 2, 0, 24)
    assert world.pool.num_swapped_out > 0
    assert look() == before
    assert world.pool.num_swapped_in > 0


def test_when_idle_opaque_pages_fill_every_tier_newcomers_are_refused_and_may_retry() -> None:
    world = World(num_blocks=4, num_host_blocks=0)
    world.program(1)
    mask = [[True] * 16] * 16
    world.do(
        1,
        world.alloc(range(4)),
        world.alloc_embeds(range(16)),
        world.embed(range(16), range(16)),
        world.forward([], range(16), range(4), mask=mask),
    )
    assert world.pool.num_free == 0
    world.program(2, queues=2)
    refused = world.do(
        2,
        world.alloc([0]),
        world.alloc_embeds([0]),
        world.embed([0], [1]),
        world.forward([], [0], [0]),
    )[3]
    assert refused.error is not None
    assert (refused.error.code, refused.error.retriable) == ("pool_exhausted", True)
    assert refused.error.details["num_blocks"] == 4
    newcomer = [world.alloc([5]), world.decode([5], [1, 2], 2)]
    late = world.do(2, *newcomer, queue=2)[1]
    assert late.error is not None
    assert (late.error.code, late.error.retriable) == ("pool_exhausted", True)
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1)))
    world.program(3)
    again = world.do(3, world.alloc([5]), world.decode([5], [1, 2], 2))[1]
    assert again.tokens == alone([1, 2], 2)


def free_embeds(world: World, embeds: Any) -> c.DeallocEmbeds:
    return c.DeallocEmbeds(id=world.id(), embeds=list(embeds))


def test_who_waits_for_embeds_gets_those_given_back_whoever_asked_for_more() -> None:
    world = World(num_embeds=4)
    for program in range(1, 5):
        world.program(program)
    world.do(1, world.alloc_embeds(range(4)))
    (large,) = world.do(2, world.alloc_embeds(range(3)))
    (small,) = world.do(3, world.alloc_embeds(range(2)))
    (late,) = world.do(4, world.alloc_embeds([0]))
    world.do(1, free_embeds(world, [0, 1]))
    assert [one.status for one in (large, small, late)] == ["pending", "done", "pending"]
    world.do(1, free_embeds(world, [2, 3]))
    assert [one.status for one in (large, late)] == ["pending", "done"]
    world.do(3, free_embeds(world, [0, 1]))
    assert large.status == "done"


def test_a_closed_queue_gives_its_embeds_to_who_waits_for_them() -> None:
    world = World(num_embeds=4)
    world.program(1)
    world.program(2)
    world.do(1, world.alloc_embeds(range(4)))
    (waiting,) = world.do(2, world.alloc_embeds(range(4)))
    closed = Called(time_s=world.harness.now_s, program=ProgramId(1), call=CloseQueue(QueueId(1)))
    world.harness.post(closed)
    assert waiting.status == "done"


def test_a_queue_that_waits_for_embeds_fails_once_another_of_its_program_has_some() -> None:
    """Else two such programs would wait for each other."""
    world = World(num_embeds=4)
    world.program(1)
    world.program(2, queues=2)
    world.do(1, world.alloc_embeds(range(2)))
    (waiting,) = world.do(2, world.alloc_embeds(range(3)))
    assert waiting.status == "pending"
    world.do(2, world.alloc_embeds([5]), queue=2)
    assert waiting.error is not None
    assert waiting.error.code == "pool_exhausted"


def test_more_decodes_than_sequences_wait_their_turn() -> None:
    world = World(max_sequences=2)
    decodes = {}
    for program in range(1, 7):
        world.program(program)
        decodes[program] = world.issue(
            program, world.alloc(range(6)), world.decode(range(6), prompt(program), 9)
        )[1]
    world.run()
    for program, decode in decodes.items():
        assert decode.tokens == alone(prompt(program), 9)


def test_a_full_output_ends_with_length_and_the_last_token_is_not_run() -> None:
    world = World()
    world.program()
    decode = world.do(1, world.alloc([0, 1]), world.decode([0, 1], prompt(1, 5), 50))[1]
    assert decode.chunks[-1].finish_reason == "length"
    assert len(decode.tokens) == 8 - 5 + 1
    assert decode.tokens == alone(prompt(1, 5), 4)


def test_a_decode_that_found_no_memory_comes_before_those_that_have_room() -> None:
    """The younger program's decode stands first in each message and has room for many tokens. The
    older one's takes its memory in the message after the one that had none for it."""
    config = {"max_steps_per_message": 1, "run_ahead": False, "output_share": 0.0}
    world = World(page_size=16, num_blocks=4, num_host_blocks=0, config=config)
    world.program(1)
    world.program(2)
    prompts = {1: list(range(10, 39)), 2: list(range(50, 67))}
    outputs = {1: 20, 2: 14}

    def ask(program: int, num_pages: int) -> CommandOutcome:
        pages = range(num_pages)
        decode = world.decode(pages, prompts[program], outputs[program])
        return world.issue(program, world.alloc(pages), decode)[1]

    young = ask(2, 2)
    while not young.tokens:
        assert world.harness.step()
    old = ask(1, 4)
    while not old.tokens:
        assert world.harness.step()
    num_before = len(young.tokens)
    while len(old.tokens) < 8:
        assert world.harness.step()
    assert len(young.tokens) - num_before <= 4
    world.run()
    for outcome, program in ((old, 1), (young, 2)):
        assert outcome.tokens == alone(prompts[program], outputs[program], page_size=16)
    assert world.figures.num_preemptions == 1
