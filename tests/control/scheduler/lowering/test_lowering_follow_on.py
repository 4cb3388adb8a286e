"""Commands that begin and go on later: what other queues change under them enters no prefix index.

Between queues nothing is ordered, so a program may change pages and embeds that one of its commands
still reads. What that command computes then is not what other programs find under its tokens.
"""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World, alone

from quire.core import commands as c
from quire.core.calls import Issue
from quire.core.decoding import StopSpec
from quire.core.events import Called
from quire.core.ids import ProgramId, QueueId

SIZE, BUDGET = 4, 8
CONTEXT = [10, 11, 12, 13]
REST = list(range(20, 36))
"""Two messages of ``BUDGET`` tokens."""
URGENT = 3
"""A queue whose commands go before those of the others."""
NOTHING = StopSpec(max_tokens=0)


def two_programs() -> World:
    """Program 1 has the queues 1, 2 and ``URGENT``, and a second page with ``CONTEXT`` (2), which
    the index does not know; page 9 holds another text. Program 2 asks later."""
    world = World(page_size=SIZE, num_blocks=64, max_batch_tokens=BUDGET)
    world.program(1, queues=2)
    world.program(2)
    world.queue(1, URGENT, priority=5)
    first, again = world.decode([1], CONTEXT, stop=NOTHING), world.decode([2], CONTEXT, 0)
    other = world.decode([9], [7, 7, 7, 7], stop=NOTHING)
    world.do(1, world.alloc([1, 2, 3, 4, 5, 6, 9, 30]), first, again, other)
    return world


def is_answered_as_ever(world: World, prompt: list[int]) -> bool:
    """Whether program 2 gets the answer that it would get alone."""
    pages = range(12)
    told = world.do(2, world.alloc(pages), world.decode(pages, [*prompt, 1], 5))[1].tokens
    return told == alone([*prompt, 1], 5, page_size=SIZE)


def begin_prompt(world: World, context: list[int], tokens: list[int]) -> Any:
    """A prompt behind ``context``; its first message is in flight."""
    output = [3, 4, 5, 6]
    return world.issue(1, world.decode(output, tokens, position=4, context=context, stop=NOTHING))[
        0
    ]


CHANGES = {
    "mask": lambda world: c.MaskPage(id=world.id(), page=2, visible=[False] * SIZE),
    "truncate": lambda world: c.TruncatePage(id=world.id(), page=2, fill=0),
    "copy": lambda world: c.CopyPage(
        id=world.id(), source=9, target=2, source_offset=0, target_offset=0, num_slots=SIZE
    ),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_page_of_the_context_that_is_changed_meanwhile(how: str) -> None:
    world = two_programs()
    prompt = begin_prompt(world, [2], REST)
    change = world.issue(1, CHANGES[how](world), queue=2)[0]
    world.run()
    assert (prompt.status, change.status) == ("done", "done")
    assert is_answered_as_ever(world, [*CONTEXT, *REST])


@pytest.mark.parametrize("how", CHANGES)
def test_a_page_of_the_context_that_is_changed_before_a_forward_goes_on(how: str) -> None:
    world = two_programs()
    num = len(REST)
    embeds = world.alloc_embeds(range(num)), world.embed(range(num), REST, position=4)
    world.do(1, *embeds)
    forward = world.issue(1, world.forward([2], range(num), [3, 4, 5, 6]))[0]
    change = world.issue(1, CHANGES[how](world), queue=2)[0]
    world.run()
    assert (forward.status, change.status) == ("done", "done")
    assert is_answered_as_ever(world, [*CONTEXT, *REST])


def test_an_empty_page_of_the_context_to_which_another_command_appends() -> None:
    world = two_programs()
    prompt = begin_prompt(world, [1, 30], REST)
    tail = world.decode([30], [90, 91, 92], position=4, context=[1, 30], stop=NOTHING)
    other = world.issue(1, tail, queue=URGENT)[0]
    world.run()
    assert (prompt.status, other.status) == ("done", "done")
    assert is_answered_as_ever(world, [*CONTEXT, *REST])


def test_a_page_is_cut_and_written_anew_while_a_sequence_reads_it() -> None:
    world = two_programs()
    reader = world.issue(1, world.decode([3, 4, 5, 6], [20], 13, position=4, context=[2]))[0]
    for _ in range(2):
        world.harness.step_engine(ENGINE)
    cut = c.TruncatePage(id=world.id(), page=2, fill=1)
    anew = world.decode([2], [8, 8, 8], position=1, stop=NOTHING)
    changed = world.issue(1, cut, anew, queue=URGENT)
    world.run()
    assert [one.status for one in (reader, *changed)] == ["done"] * 3
    assert reader.tokens == alone([*CONTEXT, 20], 13, page_size=SIZE), "it read the page as it was"
    assert is_answered_as_ever(world, [*CONTEXT, 20, *reader.tokens[:-1]])


@pytest.mark.parametrize("num_tokens", [BUDGET, 3 * BUDGET])
def test_an_embed_that_is_written_anew_before_a_forward_has_read_it(num_tokens: int) -> None:
    """In the same message as the forward, or before the message with its last part."""
    world = two_programs()
    tokens, program = list(range(20, 20 + num_tokens)), ProgramId(1)
    inputs, output = range(num_tokens), range(40, 48)
    world.do(1, world.alloc(output), world.alloc_embeds(inputs), world.embed(inputs, tokens))
    forward = world.forward([], inputs, output)
    issued = Called(
        time_s=world.harness.now_s,
        program=program,
        call=Issue(QueueId(1), [forward]),
        more=True,
    )
    world.harness.post(issued)
    last = num_tokens - 1
    again = world.issue(1, world.embed([last], [99], position=last), queue=2)[0]
    world.run()
    assert again.status == world.harness.outcomes[program, forward.id].status == "done"
    assert is_answered_as_ever(world, tokens)


def test_copies_to_one_page_in_one_message_take_one_block() -> None:
    world = two_programs()
    before = world.pool.num_free
    target = world.alloc([60])
    copies = [
        c.CopyPage(
            id=world.id(), source=9, target=60, source_offset=slot, target_offset=slot, num_slots=1
        )
        for slot in range(SIZE)
    ]
    outcomes = world.issue(1, target, *copies)
    assert before - world.pool.num_free == 1
    world.run()
    assert [one.status for one in outcomes] == ["done"] * 5
