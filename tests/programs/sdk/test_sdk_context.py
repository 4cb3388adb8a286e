"""``Context`` over the real controller: every shape it can take says what a fresh one would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs_node import level, node_of, node_saying

from quire.core.actions import Action
from quire.core.calls import SetQueueDepth
from quire.core.decoding import StopSpec
from quire.core.errors import (
    EngineLost,
    GrammarError,
    InvalidArgument,
    NeverWithinQuota,
    ProgramCancelled,
    PromptTooLong,
    QueuePoisoned,
    QuireError,
    UnknownHandle,
)
from quire.core.events import Called, Event
from quire.core.quotas import Quotas
from quire.programs.api import Api, connect_api
from quire.programs.sdk import Context, choice, regex, temperature
from quire.testing import FakeTokenizer, LocalNode

TOKENIZER = FakeTokenizer()
TEXT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture(params=[1, 4, 16])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[LocalNode]:
    async with node_of(request.param) as node:
        yield node


@pytest.fixture
async def api(node: LocalNode) -> AsyncIterator[Api]:
    api = connect_api(node.connect())
    yield api
    api.close()
    at_rest = await level(node)
    assert (at_rest["held"], at_rest["pending"], at_rest["queues"]) == (0, 0, 0)


async def fresh(api: Api, tokens: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """What a context without history and without the cache says behind ``tokens``."""
    from quire.core.decoding import StopSpec

    queue = api.create_queue()
    size = queue.page_size
    pages = api.alloc_kvpage(queue, -(-(len(tokens) + num_tokens) // size))
    stop = StopSpec(num_tokens)
    decoded = await api.decode(queue, [], tokens, pages, stop=stop, position=0, cache=False)
    api.close_queue(queue)
    return tuple(decoded.token_ids)


async def going_on(ctx: Context, num_tokens: int = 6) -> tuple[int, ...]:
    return (await ctx.generate(max_tokens=num_tokens, ignore_eos=True)).token_ids


@pytest.mark.parametrize("number", [None, "1", 0.5, 1 << 63])
async def test_a_queues_numbers_are_integers(api: Api, number: Any) -> None:
    for name in ("thread", "depth", "priority"):
        with pytest.raises(InvalidArgument, match=f"{name} is .*: give (an integer|int)"):
            api.create_queue(**{name: number})
    with pytest.raises(InvalidArgument, match="priority is"):
        api.set_queue_priority(api.create_queue(), number)
    for name in ("depth", "invocation", "remaining_us"):
        with pytest.raises(InvalidArgument, match=f"{name} is .*: give (an integer|int)"):
            api.set_queue_depth(api.create_queue(), **{"depth": 1, name: number})


async def test_generating_in_turns(api: Api) -> None:
    ctx = Context(api).fill(TEXT)
    first = await going_on(ctx)
    assert first == await fresh(api, TOKENIZER_TOKENS, 6)
    ctx.fill(" and then")
    before = ctx.tokens
    assert await going_on(ctx) == await fresh(api, before, 6)
    assert ctx.text == TOKENIZER.decode(ctx.tokens)
    assert len(ctx) == len(ctx.tokens) == len(before) + 6


TOKENIZER_TOKENS = tuple(TOKENIZER.encode(TEXT))


async def test_forks_agree_with_recomputing(api: Api) -> None:
    ctx = Context(api).fill(TEXT)
    await ctx.prefill()
    forks = [ctx.fork().fill(f" {number}") for number in range(3)]
    starts = [fork.tokens for fork in forks]
    said = await asyncio.gather(going_on(ctx), *(going_on(fork) for fork in forks))
    expected = [await fresh(api, tokens, 6) for tokens in (TOKENIZER_TOKENS, *starts)]
    assert list(said) == expected
    grandchild = forks[0].fork()
    for each in (ctx, forks[0]):
        each.drop()
        each.drop()
    before = grandchild.tokens
    assert await going_on(grandchild) == await fresh(api, before, 6)


@pytest.mark.parametrize(
    ("text", "num_kept"), [(TEXT + "!", 42), (TEXT[:9], 9), ("The quiet", 7), ("", 0), (TEXT, 42)]
)
async def test_a_revised_text_keeps_what_is_computed_of_it(
    api: Api, text: str, num_kept: int
) -> None:
    ctx = Context(api).fill(TEXT)
    await ctx.prefill()
    ctx.revise(text)
    assert ctx.text == text
    pages = -(-num_kept // api.available_models()[0].page_size)
    assert ctx.num_pages == pages
    if text:
        said = (await ctx.generate(max_tokens=4)).token_ids
        assert said == await fresh(api, ctx.tokens[:-4], 4)


async def test_join_appends_what_the_children_gained(api: Api) -> None:
    ctx = Context(api).fill("ab")
    one, two = ctx.fork().fill("1"), ctx.fork().fill("2")
    said_one, said_two = await asyncio.gather(going_on(one, 3), going_on(two, 3))
    ctx.join(one, two)
    expected = (*b"ab", *b"1", *said_one, *b"2", *said_two)
    assert ctx.tokens == expected
    assert await going_on(ctx) == await fresh(api, expected, 6)
    with pytest.raises(InvalidArgument, match="dropped"):
        one.fill("more")
    assert ctx.fork().fill("x<|end|>").text.endswith("x<|end|>")
    ended = ctx.fork().fill("x<|end|>")
    assert ctx.join(ended).text.endswith("x")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from([1, 4, 16]),
    st.lists(
        st.one_of(
            st.tuples(st.just("fill"), st.integers(1, 9)),
            st.tuples(st.just("generate"), st.integers(1, 9)),
            st.tuples(st.just("truncate"), st.integers(0, 20)),
            st.tuples(st.just("fork"), st.integers(0, 3)),
            st.tuples(st.just("drop"), st.integers(0, 3)),
            st.tuples(st.just("cancel"), st.integers(0, 12)),
        ),
        max_size=8,
    ),
)
def test_any_history_says_what_a_fresh_context_says(
    page_size: int, steps: list[tuple[str, int]]
) -> None:
    asyncio.run(walk(page_size, steps))


async def walk(page_size: int, steps: list[tuple[str, int]]) -> None:
    async with node_of(page_size) as node:
        api = connect_api(node.connect())
        contexts = [Context(api).fill(TEXT[:11])]
        for number, (kind, amount) in enumerate(steps):
            ctx = contexts[number % len(contexts)]
            if kind == "fill":
                ctx.fill(TEXT[:amount])
            elif kind == "generate":
                await going_on(ctx, amount)
            elif kind == "truncate":
                ctx.truncate(max(1, len(ctx) - amount))
            elif kind == "fork":
                contexts.append(ctx.fork())
            elif kind == "drop" and len(contexts) > 1:
                contexts.remove(ctx)
                ctx.drop()
            elif kind == "cancel":
                await cancelled(ctx, amount)
        for ctx in contexts:
            tokens = ctx.tokens
            assert await going_on(ctx, 4) == await fresh(api, tokens, 4)
            ctx.drop()
        at_rest = await level(node)
        assert at_rest["held"] == 0
        api.close()


async def cancelled(ctx: Context, num_turns: int) -> None:
    """Cancel a generation some turns after it has begun."""
    generation = ctx.generate(max_tokens=40, ignore_eos=True)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    async with generation:
        pass
    assert generation.ended


async def test_a_cancelled_generation_keeps_what_was_said(api: Api) -> None:
    ctx = Context(api).fill(TEXT)
    generation = ctx.generate(max_tokens=150, ignore_eos=True)
    await anext(aiter(generation))
    generation.cancel()
    with suppress(ProgramCancelled):
        await generation
    assert ctx.tokens[: len(TOKENIZER_TOKENS)] == TOKENIZER_TOKENS
    tokens = ctx.tokens
    assert len(TOKENIZER_TOKENS) < len(tokens) < len(TOKENIZER_TOKENS) + 150
    assert await going_on(ctx) == await fresh(api, tokens, 6)


async def test_a_generation_that_does_not_stream_says_the_same(api: Api) -> None:
    streamed = await Context(api).fill(TEXT).generate(max_tokens=9, ignore_eos=True)
    ctx = Context(api).fill(TEXT)
    generation = ctx.generate(max_tokens=9, ignore_eos=True, stream=False)
    pieces = [piece async for piece in generation]
    assert "".join(pieces) == streamed.text
    assert len(pieces) <= 2, "all at once, and what a cut character becomes"
    assert (await generation).token_ids == streamed.token_ids
    assert await going_on(ctx) == await fresh(api, ctx.tokens[:-6], 6)


@pytest.mark.parametrize("num_turns", [0, 1, 5, 40])
async def test_cancelled_it_keeps_what_was_said_too(api: Api, num_turns: int) -> None:
    ctx = Context(api).fill(TEXT)
    generation = ctx.generate(max_tokens=150, ignore_eos=True, stream=False)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    generation.cancel()
    with suppress(ProgramCancelled):
        await generation
    tokens = ctx.tokens
    assert tokens[: len(TOKENIZER_TOKENS)] == TOKENIZER_TOKENS
    assert num_turns < 40 or len(tokens) > len(TOKENIZER_TOKENS)
    assert await going_on(ctx) == await fresh(api, tokens, 6)


async def test_misuse_is_named(api: Api) -> None:
    ctx = Context(api)
    with pytest.raises(InvalidArgument, match="empty"):
        ctx.generate(max_tokens=1)
    ctx.fill("ab")
    generation = ctx.generate(max_tokens=3, ignore_eos=True)
    for action in (ctx.fork, lambda: ctx.fill("x"), lambda: ctx.generate(max_tokens=1)):
        with pytest.raises(InvalidArgument, match="is generating"):
            action()  # type: ignore[operator]
    await generation
    with pytest.raises(InvalidArgument, match="truncate to 9"):
        ctx.truncate(9)
    with pytest.raises(InvalidArgument, match=r"max_tokens is '8': give int\('8'\)"):
        ctx.generate(max_tokens="8")  # type: ignore[arg-type]
    for wrong, message in (
        (5, "a text or a list of token ids, not 5"),
        ([0.5], "a token id is 0.5: give an integer"),
        ([65, -1], "token id -1: the vocabulary has"),
        ([1 << 40], f"token id {1 << 40}: the vocabulary has"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            ctx.fill(wrong)  # type: ignore[arg-type]
    for stop in (5, [5], [""], ["x", ""]):
        with pytest.raises(InvalidArgument, match=r"stop is .*: give strings"):
            ctx.generate(max_tokens=1, stop=stop)  # type: ignore[arg-type]
    for change in (ctx.truncate, lambda one: ctx.evict(one, one)):
        with pytest.raises(InvalidArgument, match=r"is '2': give int\('2'\)"):
            change("2")  # type: ignore[arg-type]
    for num_tokens in (-1, len(ctx) + 1):
        with pytest.raises(InvalidArgument, match=f"prefill of {num_tokens} tokens"):
            await ctx.prefill(num_tokens=num_tokens)
    await Context(api).prefill()
    child = ctx.fork()
    for children in ([ctx], [child, child]):
        with pytest.raises(InvalidArgument, match="give each child once"):
            ctx.join(*children)
    assert ctx.join(child.fill("x")).text.endswith("x"), "nothing was joined before"
    ctx.fill([65] * 5000)
    with pytest.raises(PromptTooLong, match="truncate it"):
        ctx.generate(max_tokens=1)


async def test_a_context_that_was_dropped_has_its_text_and_nothing_else(api: Api) -> None:
    async with Context(api).fill("ab") as ctx:
        pass
    assert (ctx.text, ctx.tokens) == ("ab", (97, 98))
    for action in (ctx.fork, lambda: ctx.fill("x"), lambda: ctx.generate(max_tokens=1)):
        with pytest.raises(InvalidArgument, match="has been dropped"):
            action()  # type: ignore[operator]
    with pytest.raises(InvalidArgument, match="has been dropped"):
        await ctx.next_dist()


async def test_one_context_is_not_for_two_tasks(api: Api) -> None:
    """What the second one does would stand between the commands of the first."""
    ctx = Context(api).fill(TEXT)
    expected = (await fresh(api, ctx.tokens, 1))[0]
    first = asyncio.create_task(ctx.next_dist())
    await asyncio.sleep(0)
    for action in (ctx.next_dist, ctx.prefill):
        with pytest.raises(InvalidArgument, match=r"another task is computing|is generating"):
            await action()  # type: ignore[operator]
    for change in (lambda: ctx.fill("x"), lambda: ctx.truncate(1), ctx.fork):
        with pytest.raises(InvalidArgument, match=r"another task is computing|is generating"):
            change()  # type: ignore[operator]
    assert (await first).max_index() == expected
    assert (await ctx.next_dist()).max_index() == expected


async def test_a_step_that_is_given_up_leaves_the_context_usable(api: Api) -> None:
    ctx = Context(api).fill(TEXT)
    expected = (await fresh(api, ctx.tokens, 1))[0]
    for num_turns in range(6):
        step = asyncio.create_task(ctx.next_dist())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait([step])
        if ctx.generating:
            await ctx._paged._running  # type: ignore[misc]
    assert (await ctx.next_dist()).max_index() == expected


async def test_after_a_failure_a_context_goes_on_with_its_text() -> None:
    async with node_of(4) as node:
        api = connect_api(node.connect(quotas=Quotas(max_pages=20)))
        ctx = Context(api).fill(TEXT)
        async with ctx.fork() as fork:
            expected = await going_on(fork)
        await ctx.generate(max_tokens=28, ignore_eos=True)
        ctx.truncate(len(TOKENIZER_TOKENS))
        for _ in range(2):
            with pytest.raises(QuireError) as raised:
                await ctx.generate(max_tokens=200, ignore_eos=True)
            assert isinstance(raised.value.__cause__ or raised.value, NeverWithinQuota)
        with pytest.raises(GrammarError):
            await ctx.generate(max_tokens=4, grammar=regex("("))
        assert ctx.text == TEXT
        assert await going_on(ctx) == expected
        ctx.drop()
        api.close()
        assert (await level(node))["held"] == 0


async def test_what_the_text_does_not_tell_is_not_computed_again() -> None:
    async with node_of(4) as node:
        api = connect_api(node.connect(quotas=Quotas(max_pages=20)))
        ctx = Context(api).fill(TEXT)
        await ctx.next_dist()
        ctx.evict(0, 8)
        with pytest.raises(QuireError):
            await ctx.generate(max_tokens=200, ignore_eos=True)
        with pytest.raises(InvalidArgument, match=r"has failed \(.*\), and its pages"):
            await ctx.next_dist()
        api.close()


async def test_a_failure_that_nobody_saw_is_told_first() -> None:
    async with node_of(4) as node:
        api = connect_api(node.connect(quotas=Quotas(max_pages=20)))
        ctx = Context(api).fill(TEXT)
        lost = ctx.generate(max_tokens=200, ignore_eos=True)
        await node.idle()
        assert lost.ended
        with pytest.raises(QueuePoisoned) as raised:
            await ctx.generate(max_tokens=2)
        assert isinstance(raised.value.__cause__, NeverWithinQuota)
        assert len(await going_on(ctx)) == 6
        api.close()


async def test_without_a_model_a_context_says_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.issuer.port, "models", lambda: [])
    with pytest.raises(EngineLost, match="no model is loaded yet"):
        Context(api)


async def test_dropping_while_it_runs_frees_the_pages(api: Api, node: LocalNode) -> None:
    ctx = Context(api).fill(TEXT)
    child = ctx.fork()
    ctx.generate(max_tokens=300)
    child.generate(max_tokens=300)
    await asyncio.sleep(0)
    ctx.drop()
    child.drop()
    assert (await level(node))["held"] == 0


async def test_a_context_says_which_pages_are_its_own(api: Api) -> None:
    ctx = Context(api).fill(list(range(3 * page_size(api) + 1)))
    await ctx.prefill()
    assert (ctx.num_pages, ctx.num_own_pages, ctx.num_shared_pages) == (3, 3, 0)
    fork = ctx.fork()
    await fork.generate(max_tokens=1, ignore_eos=True)
    assert (ctx.num_own_pages, ctx.num_shared_pages) == (0, 3)
    assert (fork.num_own_pages, fork.num_shared_pages) == (1, 3)
    ctx.truncate(2 * page_size(api))
    assert (fork.num_own_pages, fork.num_shared_pages) == (2, 2)
    ctx.drop()
    assert (fork.num_own_pages, fork.num_shared_pages) == (4, 0)
    fork.drop()
    assert (fork.num_own_pages, fork.num_shared_pages) == (0, 0)


def page_size(api: Api) -> int:
    return Context(api).model.page_size


async def test_pages_travel_between_programs_by_name(api: Api, node: LocalNode) -> None:
    ctx = Context(api).fill(TEXT)
    num_exported = await ctx.export("fox", ttl_s=None)
    assert num_exported == len(TOKENIZER_TOKENS) - 1
    other = connect_api(node.connect("other"))
    copy = await Context.from_export(other, "fox", TOKENIZER_TOKENS)
    said = await copy.generate(max_tokens=6, ignore_eos=True)
    assert said.token_ids == await going_on(ctx)
    exact = await Context.from_export(other, "fox", TOKENIZER_TOKENS[:-1])
    assert await going_on(exact) == await fresh(api, TOKENIZER_TOKENS[:-1], 6)
    with pytest.raises(InvalidArgument, match="pass the exporter"):
        await Context.from_export(other, "fox", [1])
    other.close()
    stranger = connect_api(node.connect("stranger", tenant="elsewhere"))
    with pytest.raises(UnknownHandle):
        await Context.from_export(stranger, "fox", TOKENIZER_TOKENS)
    stranger.close()


async def test_an_export_brings_its_text(api: Api, node: LocalNode) -> None:
    ctx = Context(api).fill(TEXT)
    await ctx.export("fox", ttl_s=None)
    other = connect_api(node.connect("other"))
    copy = await Context.from_export(other, "fox")
    assert (copy.tokens, copy.text) == (tuple(TOKENIZER_TOKENS), TEXT)
    said = await copy.generate(max_tokens=6, ignore_eos=True)
    assert said.token_ids == await going_on(ctx)
    other.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grammar": {"type": "object"}}, r"grammar is \{'type': 'object'\}: give what json_sch"),
        ({"grammar": "[ab]+"}, r"grammar is '\[ab\]\+': give what json_schema, regex or lark"),
        ({"sampler": "greedy"}, r"sampler is 'greedy': give greedy\(\), or for example"),
        ({"sampler": 0.8}, r"sampler is 0\.8"),
    ],
)
async def test_a_sampler_and_a_grammar_are_the_sdk_s(
    api: Api, options: dict[str, Any], message: str
) -> None:
    ctx = Context(api).fill(TEXT)
    with pytest.raises(InvalidArgument, match=message):
        ctx.generate(max_tokens=1, **options)
    await ctx.generate(max_tokens=1)


async def test_a_text_is_exported_again_under_its_name(api: Api) -> None:
    """As a chat does that is kept from turn to turn."""
    ctx = Context(api).fill(TEXT)
    await ctx.export("fo", ttl_s=None, replace=True)  # there is none yet
    await ctx.export("fox", ttl_s=None)
    ctx.fill(" Then")
    with pytest.raises(InvalidArgument, match="'fox' exists"):
        await ctx.export("fox")
    await ctx.export("fox", ttl_s=None, replace=True)
    assert (await Context.from_export(api, "fox")).text == f"{TEXT} Then"
    assert (await Context.from_export(api, "fo")).text == TEXT


async def test_pages_exported_by_hand_may_have_no_text(api: Api) -> None:
    queue = api.create_queue()
    pages = api.alloc_kvpage(queue, 2)
    await api.decode(queue, [], [5, 6], pages, stop=StopSpec(0))
    await api.export_kvpage(queue, pages, "silent", ttl_s=None)
    await api.export_kvpage(queue, pages, "telling", ttl_s=None, tokens=[5, 6, 7])
    with pytest.raises(InvalidArgument, match="made without tokens: pass the"):
        await Context.from_export(api, "silent")
    assert (await Context.from_export(api, "silent", [5, 6])).tokens == (5, 6)
    assert (await Context.from_export(api, "telling")).tokens == (5, 6, 7)
    imported = await api.import_text(queue, "telling")
    assert sum(page.fill or 0 for page in imported.pages) == 2
    assert imported.tokens == [5, 6, 7]
    assert (await api.import_text(queue, "silent")).tokens is None


async def test_samplers_and_constraints(api: Api) -> None:
    ctx = Context(api).fill(TEXT)
    warm = temperature(1.2, top_p=0.9, top_k=40, min_p=0.01, seed=3)
    other = ctx.fork()
    first = await ctx.generate(max_tokens=6, sampler=warm, ignore_eos=True)
    second = await other.generate(max_tokens=6, sampler=warm, ignore_eos=True)
    assert first.token_ids == second.token_ids
    picked = Context(api).fill("Pick:")
    assert await picked.generate_until(grammar=choice(["re.d", "blue"])) in ("re.d", "blue")
    number = await picked.generate(grammar=regex("[0-9]{3}"), num_logprobs=1)
    assert number.text.isdigit()
    assert (len(number.text), number.finish_reason) == (3, "stop")
    assert number.logprobs is not None
    for bad in (-1.0, 0.5):
        with pytest.raises(InvalidArgument, match="temperature"):
            temperature(bad, top_p=0.0 if bad > 0 else 1.0)


async def test_chat_text_and_stops() -> None:
    node, script = node_saying(lambda prompt: "one\ntwo<|end|>")
    async with node:
        api = connect_api(node.connect())
        ctx = Context(api).fill_chat([{"role": "user", "content": "count"}])
        assert [text async for text in ctx.generate(stop="\n", max_tokens=9)] == list("one")
        assert ctx.text.endswith("<|user|>count<|end|><|assistant|>one\n")
        rest = await ctx.generate(max_tokens=9)
        assert (rest.text, rest.finish_reason) == ("two", "stop")
        assert script.prompts == ["<|user|>count<|end|><|assistant|>"]
        api.close()


async def test_the_depth_is_told_once_and_a_fork_has_it() -> None:
    async with node_of(4) as node:
        told: list[SetQueueDepth] = []
        submit = node.harness.post

        def noted(event: Event) -> list[Action]:
            if isinstance(event, Called) and isinstance(event.call, SetQueueDepth):
                told.append(event.call)
            return submit(event)

        node.harness.post = noted  # type: ignore[method-assign]
        api = connect_api(node.connect())
        ctx = Context(api, depth=5).fill(TEXT)
        ctx.set_depth(5).set_depth(4, invocation=2, remaining_us=70).set_depth(
            4, invocation=2, remaining_us=70
        )
        await ctx.prefill()
        other = ctx.fork()
        generation = other.generate(max_tokens=2)
        with pytest.raises(InvalidArgument, match="is generating"):
            other.set_depth(3)
        await generation
        api.close()
    places = [(call.depth, call.invocation, call.remaining_us) for call in told]
    assert places == [(4, 2, 70), (4, 2, 70)]
    assert len({call.queue for call in told}) == 2
