"""Decodes that do not stream: one reply at the end, with what the chunks of another one say."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World, alone

from quire.core.calls import Cancel, CloseQueue
from quire.core.decoding import DecodeChunk
from quire.core.ids import ProgramId, QueueId
from quire.core.quotas import Quotas

PROMPT = list(range(10, 23))


def both(world: World, **fields: Any) -> tuple[Any, Any]:
    """The same decode of two programs, the first of which streams."""
    outcomes = []
    for program, stream in ((1, True), (2, False)):
        world.program(program)
        decode = world.decode(range(12), PROMPT, 20, stream=stream, cache=False, **fields)
        outcomes.append(world.issue(program, world.alloc(range(12)), decode)[1])
    world.run()
    return outcomes[0], outcomes[1]


def test_the_only_reply_says_what_all_chunks_say() -> None:
    world = World()
    streamed, whole = both(world)
    (reply,) = whole.chunks
    assert len(streamed.chunks) > 1
    assert reply.token_ids == streamed.tokens == alone(PROMPT, 20)
    assert reply.finish_reason == streamed.chunks[-1].finish_reason == "length"
    assert reply.seed == streamed.chunks[0].seed
    assert reply.first_token_after_s is not None
    assert 0 < reply.first_token_after_s < world.harness.now_s


def test_log_probabilities_of_all_messages_are_told() -> None:
    streamed, whole = both(World(), num_logprobs=2, num_prompt_logprobs=1)
    (reply,) = whole.chunks
    told = [entry for chunk in streamed.chunks for entry in chunk.logprobs or ()]
    assert reply.logprobs == told
    assert len(told) == 20
    assert reply.prompt_logprobs == streamed.chunks[0].prompt_logprobs
    assert len(reply.prompt_logprobs) == len(PROMPT) - 1


def test_the_messages_to_the_engine_are_the_same() -> None:
    batches = []
    for stream in (True, False):
        world = World(num_blocks=16, num_host_blocks=64, max_batch_tokens=16)
        for program in range(1, 6):
            world.program(program)
            decode = world.decode(range(12), [program, *PROMPT], 30, stream=stream)
            world.issue(program, world.alloc(range(12)), decode)
        world.run()
        batches.append(str([one.batch for one in world.harness.dispatched]))
        assert world.figures.num_preemptions > 0
    assert batches[0] == batches[1]


@pytest.mark.parametrize("num_messages", [0, 1, 2, 3, 4])
def test_a_cancelled_one_tells_first_what_its_pages_hold(num_messages: int) -> None:
    world = World()
    world.program()
    world.do(1, world.alloc(range(16)))
    decode = world.issue(1, world.decode(range(16), PROMPT, 40, stream=False))[0]
    for _ in range(num_messages):
        world.harness.step_engine(ENGINE)
    assert not decode.replies
    world.harness.call(ProgramId(1), Cancel(decode.command.id))
    world.run()
    assert decode.status == "cancelled"
    assert len(decode.chunks) == 1, "of the messages in flight, at least"
    assert decode.tokens == alone(PROMPT, 40)[: len(decode.tokens)]
    told = len(decode.tokens)
    position = len(PROMPT) + told - 1
    more = world.do(1, world.decode(range(16), [decode.tokens[-1]], 5, position=position))[0]
    assert more.tokens == alone(PROMPT, 40)[told : told + 5]


def test_one_that_meets_its_quota_tells_first_what_it_was_allowed() -> None:
    world = World()
    world.program(quotas=Quotas(max_generated_tokens=7))
    decode = world.do(1, world.alloc(range(16)), world.decode(range(16), PROMPT, 20, stream=False))[
        1
    ]
    assert decode.status == "failed"
    assert [chunk.token_ids for chunk in decode.chunks] == [alone(PROMPT, 7)]
    assert decode.chunks[0].finish_reason is None


def test_nothing_is_told_behind_the_end_of_a_closed_queue() -> None:
    world = World()
    world.program()
    world.do(1, world.alloc(range(16)))
    decode = world.issue(1, world.decode(range(16), PROMPT, 40, stream=False))[0]
    for _ in range(2):
        world.harness.step_engine(ENGINE)
    world.harness.call(ProgramId(1), CloseQueue(QueueId(1)))
    world.run()
    assert decode.status == "cancelled"
    assert decode.tokens == alone(PROMPT, 40)[: len(decode.tokens)]


def test_a_prompt_alone_has_one_reply_without_tokens() -> None:
    world = World()
    world.program()
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 0, stream=False))[1]
    assert decode.replies == [DecodeChunk(token_ids=[], finish_reason="length")]


def test_whether_it_streams_is_refused_by_value_when_it_is_no_truth_value() -> None:
    world = World()
    world.program()
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 2, stream="no"))[1]
    assert decode.error is not None
    assert decode.error.code == "invalid_argument"
