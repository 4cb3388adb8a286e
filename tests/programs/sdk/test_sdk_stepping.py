"""Contexts step by step: what a token sees after evictions, masks, forks and ways back.

The reference is a list of tokens and a set of those that were evicted; the fake model's oracle says
what must come out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs_node import level, node_of

from quire.core.decoding import Dist, StopSpec
from quire.core.errors import InvalidArgument, PromptTooLong
from quire.programs.api import connect_api
from quire.programs.sdk import Context
from quire.programs.sdk.page_span import Sees
from quire.testing import FakeTokenizer, SeenToken, expected_decode, expected_dist
from quire.testing.oracle import ReferenceContext, token_content

TOKENIZER = FakeTokenizer()
TEXT = TOKENIZER.encode("The quick brown fox jumps")


def every_third(query: int, key: int) -> bool:
    return (query + key) % 3 != 0


def window(query: int, key: int) -> bool:
    return query - key < 7


MASKS: list[Sees | None] = [None, every_third, window]


@dataclass
class Reference:
    """A context without pages. ``seen[i]``: what later tokens see of token ``i``."""

    tokens: list[int]
    seen: list[SeenToken] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    def fork(self) -> Reference:
        return Reference(list(self.tokens), list(self.seen), set(self.gone))

    def shorten(self, num_run: int) -> None:
        del self.seen[num_run:]
        self.gone = {position for position in self.gone if position < num_run}

    def step(self, num: int, sees: Sees | None) -> list[Dist]:
        first = len(self.tokens) - num
        if first < len(self.seen):
            self.shorten(first)
        dists = []
        for position in range(len(self.seen), len(self.tokens)):
            shown = [
                key not in self.gone and (sees is None or sees(position, key))
                for key in range(position)
            ]
            context, (hidden,) = ReferenceContext(tuple(self.seen)).run(
                [token_content(self.tokens[position])], [position], [[*shown, True]]
            )
            self.seen = list(context.seen)
            dists.append(expected_dist(hidden, TOKENIZER.vocab_size, 6))
        return dists[-num:]

    def generate(self, max_tokens: int) -> list[int]:
        start = min(len(self.seen), len(self.tokens) - 1)
        self.shorten(start)
        shown = [token for i, token in enumerate(self.seen) if i not in self.gone]
        decoded = expected_decode(
            self.tokens[start:],
            StopSpec(max_tokens),
            context=ReferenceContext(tuple(shown)),
            position=start,
        )
        self.seen += decoded.ran
        self.tokens += decoded.tokens
        return decoded.tokens


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fill", "step", "evict", "truncate", "fork", "generate"]),
        st.integers(0, 30),
        st.integers(1, 9),
    ),
    max_size=10,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 4, 16]), STEPS)
def test_any_history_says_what_the_reference_says(
    page_size: int, steps: list[tuple[str, int, int]]
) -> None:
    asyncio.run(walk(page_size, steps))


async def walk(page_size: int, steps: list[tuple[str, int, int]]) -> None:
    async with node_of(page_size) as node:
        api = connect_api(node.connect())
        pairs = [(Context(api).fill(TEXT), Reference(list(TEXT)))]
        for number, (kind, place, amount) in enumerate(steps):
            ctx, reference = pairs[number % len(pairs)]
            if kind == "fork":
                pairs.append((ctx.fork(), reference.fork()))
            else:
                await take(ctx, reference, kind, place, amount)
        for ctx, reference in pairs:
            assert ctx.tokens == tuple(reference.tokens)
            try:
                said = (await ctx.generate(max_tokens=3, ignore_eos=True)).token_ids
            except InvalidArgument:
                assert len(reference.gone) >= page_size > 1  # the page to run again is gone
            else:
                assert list(said) == reference.generate(3)
            ctx.drop()
        assert (await level(node))["held"] == 0
        assert (await level(node))["queues"] == 0
        api.close()


async def take(ctx: Context, reference: Reference, kind: str, place: int, amount: int) -> None:
    length = len(reference.tokens)
    try:
        if kind == "fill":
            ctx.fill(TEXT[:amount])
            reference.tokens += TEXT[:amount]
        elif kind == "step":
            sees = MASKS[place % len(MASKS)]
            num = min(amount, length)
            dists = await ctx.next_dists(num, top_k=6, sees=sees)
            agree(dists, reference.step(num, sees))
        elif kind == "evict":
            stop = min(place + amount, len(reference.seen), length - 1)
            start = min(place, stop)
            ctx.evict(start, stop)
            reference.gone |= set(range(start, stop))
        elif kind == "truncate":
            ctx.truncate(max(1, length - amount))
            del reference.tokens[max(1, length - amount) :]
            reference.shorten(min(len(reference.seen), len(reference.tokens)))
        else:
            said = (await ctx.generate(max_tokens=amount, ignore_eos=True)).token_ids
            assert list(said) == reference.generate(amount)
    except InvalidArgument as exc:
        if "was evicted" not in exc.message:
            raise
        assert reference.gone


def agree(dists: list[Dist], expected: list[Dist]) -> None:
    assert [dist.token_ids for dist in dists] == [dist.token_ids for dist in expected]
    for dist, other in zip(dists, expected, strict=True):
        assert dist.probs == pytest.approx(other.probs, rel=1e-5)


async def test_stepping_by_hand_is_greedy_decoding() -> None:
    async with node_of(4) as node:
        api = connect_api(node.connect())
        by_hand, at_once = Context(api).fill(TEXT), Context(api).fill(TEXT)
        for _ in range(9):
            by_hand.fill([(await by_hand.next_dist()).max_index()])
        await at_once.generate(max_tokens=9, ignore_eos=True)
        assert by_hand.tokens == at_once.tokens
        api.close()


async def test_pages_that_nobody_sees_are_given_back() -> None:
    async with node_of(4) as node:
        api = connect_api(node.connect())
        ctx = Context(api).fill([1] * 22)
        await ctx.next_dist()
        assert ctx.num_pages == (await level(node))["held"] == 6
        ctx.evict(2, 9)  # pages 0 to 2 in part, page 1 wholly
        assert ctx.num_pages == (await level(node))["held"] == 5
        child = ctx.fork()
        child.evict(0, 14)  # pages 0 and 2 stay with the parent, page 3 is copied
        assert (ctx.num_pages, child.num_pages) == (5, 3)
        assert (await level(node))["held"] == 5 + 2
        ctx.evict(8, 14)  # what the child no longer sees the parent has seen until now: page 2 goes
        assert ctx.num_pages == 4
        ctx.drop()
        assert (await level(node))["held"] == 3
        child.drop()
        assert (await level(node))["held"] == 0
        api.close()


async def test_a_scored_step_tells_where_its_tokens_looked() -> None:
    """The fake engine gives equal shares to all that a token sees."""
    async with node_of(4) as node:
        api = connect_api(node.connect())
        ctx = Context(api).fill([1] * 10)
        await ctx.next_dist()
        ctx.evict(4, 9)  # page 1 is gone, of page 2 one token is seen
        step = await ctx.fill([2, 3, 4]).next_dists_scored(3)
        shares = [1 / 6, 1 / 7, 1 / 8]  # 5 old tokens, and the step's own
        assert sorted(step.masses) == [0, 2, 3]
        assert step.masses[0] == pytest.approx(4 * sum(shares))
        assert step.masses[2] == pytest.approx(sum(shares) + sum(shares) + sum(shares[1:]))
        assert step.masses[3] == pytest.approx(shares[2])
        assert len(step.dists) == 3
        api.close()


async def test_scores_with_an_adapter_of_the_context_are_refused() -> None:
    async with node_of(4, adapters=("brief",)) as node:
        api = connect_api(node.connect())
        ctx = Context(api, adapter="brief").fill([1] * 6)
        with pytest.raises(InvalidArgument, match="scores with adapter 'brief'"):
            await ctx.next_dists_scored(1)
        other = Context(api, adapter="brief").fill([1] * 6)
        plain = Context(api).fill([1] * 6)
        assert await other.next_dist() != await plain.next_dist()
        api.close()


async def test_misuse_is_named() -> None:
    async with node_of(4) as node:
        api = connect_api(node.connect())
        ctx = Context(api).fill([1] * 10)
        with pytest.raises(InvalidArgument, match="from 0 to 0"):
            ctx.evict(0, 4)
        await ctx.next_dist()
        with pytest.raises(InvalidArgument, match="the last token cannot be"):
            ctx.evict(0, 10)
        for start, stop in ((-1, 2), (3, 2)):
            with pytest.raises(InvalidArgument, match="from 0 to 10"):
                ctx.evict(start, stop)
        for num in (0, 11):
            with pytest.raises(InvalidArgument, match=f"after {num} tokens of 10"):
                await ctx.next_dists(num)
        ctx.evict(0, 8)
        with pytest.raises(InvalidArgument, match="go back to 4 or 8"):
            ctx.truncate(6)
        assert len(ctx) == 10
        ctx.truncate(4)
        with pytest.raises(InvalidArgument, match="export before"):
            await ctx.export("part")
        await ctx.fill([2]).next_dist()
        ctx.fill([1] * 5000)
        with pytest.raises(PromptTooLong):
            await ctx.next_dist()
        api.close()
