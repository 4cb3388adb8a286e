"""Contexts that forget their middle, and windows that stream: against the fake model's oracle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from programs_node import level, node_of

from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument, TraitMissing
from quire.core.ids import EngineId
from quire.core.traits import Trait
from quire.programs.api import Api, connect_api
from quire.programs.sdk import Context, StreamingWindow
from quire.testing import FakeEngine, LocalNode, fake_pool
from quire.testing.oracle import ReferenceContext, SeenToken, expected_decode, turned

TOKENS = list(range(50, 90))


@pytest.fixture(params=[1, 4, 16])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    async with node_of(request.param) as node:
        api = connect_api(node.connect())
        yield api
        api.close()
        at_rest = await level(node)
        assert (at_rest["held"], at_rest["pending"], at_rest["queues"]) == (0, 0, 0)


def without(seen: Sequence[SeenToken], start: int, stop: int) -> tuple[SeenToken, ...]:
    """What is left of ``seen`` when tokens were forgotten."""
    return (*seen[:start], *(turned(token, start - stop) for token in seen[stop:]))


def said(seen: Sequence[SeenToken], last: int, num: int) -> tuple[list[int], tuple[SeenToken, ...]]:
    """What a context that holds ``seen`` says behind its last token, and what it holds then."""
    expected = expected_decode(
        [last], StopSpec(num), context=ReferenceContext(tuple(seen)), position=len(seen)
    )
    return expected.tokens, (*seen, *expected.ran)


async def test_what_stands_behind_moves_up(api: Api) -> None:
    ctx = Context(api).fill(TOKENS)
    await ctx.prefill()
    size = ctx.model.page_size
    first = -(-3 // size) * size
    num = 35 // size * size - first
    assert ctx.forget(3, 35) == num
    assert list(ctx.tokens) == TOKENS[:first] + TOKENS[first + num :]
    assert ctx.num_pages == -(-(len(TOKENS) - 1 - num) // size)
    seen = without(ReferenceContext().run_tokens(TOKENS[:-1])[0].seen, first, first + num)
    generated = await ctx.generate(max_tokens=12, ignore_eos=True)
    expected, seen = said(seen, TOKENS[-1], 12)
    assert list(generated.token_ids) == expected
    assert ctx.forget(0, size) == size
    again = await ctx.generate(max_tokens=5, ignore_eos=True)
    assert list(again.token_ids) == said(without(seen, 0, size), expected[-1], 5)[0]
    ctx.drop()


async def test_a_fork_keeps_what_it_had(api: Api) -> None:
    ctx = Context(api).fill(TOKENS)
    await ctx.prefill()
    fork = ctx.fork()
    ctx.forget(0, 32)
    seen = ReferenceContext().run_tokens(TOKENS[:-1])[0].seen
    mine = await ctx.generate(max_tokens=6, ignore_eos=True)
    theirs = await fork.generate(max_tokens=6, ignore_eos=True)
    assert list(mine.token_ids) == said(without(seen, 0, 32), TOKENS[-1], 6)[0]
    assert list(theirs.token_ids) == said(seen, TOKENS[-1], 6)[0]
    ctx.join(fork)
    assert list(ctx.tokens[-12:]) == [*mine.token_ids, *theirs.token_ids]
    ctx.drop()


async def test_a_child_that_forgets_what_it_was_forked_with_has_gained_the_same(api: Api) -> None:
    ctx = Context(api).fill(TOKENS)
    await ctx.prefill()
    child = ctx.fork()
    child.fill([7, 8, 9])
    child.forget(0, 32)
    ctx.join(child)
    assert list(ctx.tokens) == [*TOKENS, 7, 8, 9]
    ctx.drop()


async def test_what_was_evicted_stays_out_of_sight(api: Api) -> None:
    ctx = Context(api).fill(TOKENS)
    await ctx.prefill()
    ctx.evict(34, 37)
    ctx.forget(0, 32)
    seen = without(ReferenceContext().run_tokens(TOKENS[:-1])[0].seen, 0, 32)
    shown = ReferenceContext((*seen[:2], *seen[5:]))
    generated = await ctx.generate(max_tokens=4, ignore_eos=True)
    expected = expected_decode([TOKENS[-1]], StopSpec(4), context=shown, position=len(seen))
    assert list(generated.token_ids) == expected.tokens
    ctx.drop()


async def test_what_cannot_be_forgotten(api: Api) -> None:
    ctx = Context(api).fill(TOKENS)
    await ctx.prefill(num_tokens=20)
    for start, stop, words in ((0, 21, "from 0 to 20"), (5, 3, "forget tokens 5 to 3"),
                               (0, 40, "the last token cannot be")):  # fmt: skip
        with pytest.raises(InvalidArgument, match=words):
            ctx.forget(start, stop)
    assert ctx.forget(3, 3) == 0
    assert list(ctx.tokens) == TOKENS
    ctx.drop()


async def test_a_window_over_sinks(api: Api) -> None:
    """Prompt and answer are each longer than the window; it holds a bounded number of pages."""
    ctx = Context(api)
    size = ctx.model.page_size
    window = StreamingWindow(ctx, size=5 * 16, num_sinks=3)
    first, num = window.first, (80 - window.first) // 2 // size * size
    await window.read(TOKENS * 5)
    tokens = await window.generate(150, ignore_eos=True)
    assert len(tokens) == 150
    assert ctx.num_pages <= -(-80 // size)
    text, seen, expected = list(TOKENS * 5), (), list[int]()
    last, held = text[0], 1
    for token in text[1:]:
        if held == 80:
            seen, held = without(seen, first, first + num), held - num
        seen = ReferenceContext(seen).run_tokens([last], len(seen))[0].seen
        last, held = token, held + 1
    while len(expected) < 150:
        if held == 80:
            seen, held = without(seen, first, first + num), held - num
        (last,), seen = said(seen, last, 1)
        expected.append(last)
        held += 1
    assert tokens == expected
    assert window.num_forgotten == 5 * len(TOKENS) + 150 - len(ctx)
    ctx.drop()


async def test_windows_that_are_none(api: Api) -> None:
    ctx = Context(api)
    for options in ({"size": 4, "num_sinks": 4}, {"num_sinks": -1}, {"size": 1 << 20}):
        with pytest.raises(InvalidArgument, match="a window of"):
            StreamingWindow(ctx, **options)
    ctx.drop()


async def test_a_model_that_cannot_forgets_nothing() -> None:
    engine = FakeEngine(fake_pool(page_size=4))
    engine.info.traits.remove(Trait.REPOSITION)
    async with LocalNode({EngineId("fake"): engine}) as local:
        api = connect_api(local.connect())
        ctx = Context(api).fill(TOKENS)
        await ctx.prefill()
        with pytest.raises(TraitMissing, match="Reposition"):
            ctx.forget(0, 8)
        assert list(ctx.tokens) == TOKENS
        assert len(await ctx.generate_until(max_tokens=3, ignore_eos=True)) > 0
        api.close()
