"""The completion program: choices, stops, scoring, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from programs_node import level, node_of, node_saying

from quire.core.errors import GrammarError, InvalidArgument, PromptTooLong, QueuePoisoned
from quire.programs.api import Api, connect_api
from quire.programs.builtin import ChoiceChunk, CompletionRequest, complete
from quire.programs.sdk import json_schema, temperature
from quire.testing import FakeTokenizer, LocalNode

TOKENIZER = FakeTokenizer()
PROMPT = tuple(TOKENIZER.encode("The quick brown fox jumps"))


@pytest.fixture(params=[1, 4, 16])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[LocalNode]:
    async with node_of(request.param) as node:
        yield node


@pytest.fixture
async def api(node: LocalNode) -> AsyncIterator[Api]:
    api = connect_api(node.connect())
    at_rest = await level(node)
    yield api
    assert await level(node) == at_rest
    api.close()


def request_of(**kwargs: object) -> CompletionRequest:
    options = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, **kwargs}
    return CompletionRequest(**options)  # type: ignore[arg-type]


async def run(api: Api, request: CompletionRequest) -> list[list[ChoiceChunk]]:
    """Chunks by choice."""
    choices: list[list[ChoiceChunk]] = [[] for _ in range(request.num_choices)]
    async for chunk in complete(api, request):
        choices[chunk.index].append(chunk)
    for chunks in choices:
        assert [chunk.finish_reason is not None for chunk in chunks][:-1] == [False] * (
            len(chunks) - 1
        )
        assert chunks[-1].finish_reason is not None
    return choices


def tokens(chunks: list[ChoiceChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def text(chunks: list[ChoiceChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def test_choices_share_the_prompt_and_agree_with_a_single_one(api: Api) -> None:
    (one,) = await run(api, request_of(cache=False))
    three = await run(api, request_of(num_choices=3, cache=False))
    assert [tokens(choice) for choice in three] == [tokens(one)] * 3
    assert len(tokens(one)) == 8
    assert one[-1].finish_reason == "length"
    assert text(one) == TOKENIZER.decode(tokens(one), skip_special=True)


async def test_without_a_stream_each_choice_is_one_chunk(api: Api) -> None:
    options = {"num_choices": 3, "num_logprobs": 1, "sampler": temperature(1.0, seed=5)}
    streamed = await run(api, request_of(**options))
    whole = await run(api, request_of(**options, stream=False))
    assert [len(choice) for choice in whole] == [1] * 3
    for one, other in zip(streamed, whole, strict=True):
        assert len(one) > 1
        assert (tokens(other), text(other)) == (tokens(one), text(one))
        told = [entry for chunk in one for entry in chunk.logprobs or ()]
        assert list(other[0].logprobs or ()) == told


async def test_seeds_differ_by_choice_and_repeat(api: Api) -> None:
    request = request_of(num_choices=2, sampler=temperature(1.0, seed=5))
    first, again = await run(api, request), await run(api, request)
    assert [tokens(choice) for choice in first] == [tokens(choice) for choice in again]
    assert tokens(first[0]) != tokens(first[1])
    (second,) = await run(api, request_of(sampler=temperature(1.0, seed=6)))
    assert tokens(second) == tokens(first[1])


async def test_cached_tokens_are_told_once(api: Api) -> None:
    page_size = api.available_models()[0].page_size
    (cold,) = await run(api, request_of())
    (warm,) = await run(api, request_of())
    full_pages = (len(PROMPT) - 1) // page_size * page_size
    assert sum(chunk.num_cached_tokens for chunk in cold) == 0
    assert sum(chunk.num_cached_tokens for chunk in warm) == full_pages
    many = await run(api, request_of(num_choices=3))
    assert [sum(c.num_cached_tokens for c in choice) for choice in many] == [full_pages, 0, 0]
    assert tokens(many[2]) == tokens(cold) == tokens(warm)


async def test_scoring_the_prompt(api: Api) -> None:
    (one,) = await run(api, request_of(max_tokens=0, num_prompt_logprobs=2))
    assert (tokens(one), one[-1].finish_reason) == ([], "length")
    scores = one[0].prompt_logprobs
    assert scores is not None
    assert [score.token_id for score in scores] == list(PROMPT[1:])
    assert all(len(score.top_ids) == 2 for score in scores)
    two = await run(api, request_of(num_choices=2, num_prompt_logprobs=2, num_logprobs=1))
    assert two[0][0].prompt_logprobs == scores
    assert [chunk.prompt_logprobs for chunk in two[1]] == [None] * len(two[1])
    entries = [entry for chunk in two[1] for entry in chunk.logprobs or ()]
    assert [entry.token_id for entry in entries] == tokens(two[1])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"prompt": ()}, "empty"),
        ({"num_choices": 0}, "at least 1"),
        ({"max_tokens": -1}, "max_tokens -1"),
        ({"min_tokens": 9}, "min_tokens 9"),
        ({"stop": ("",)}, "stop string is empty"),
    ],
)
def test_requests_that_make_no_sense(overrides: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        request_of(**overrides)


async def test_a_prompt_over_the_context_is_refused_with_both_counts(api: Api) -> None:
    limit = api.available_models()[0].max_tokens
    with pytest.raises(
        PromptTooLong, match=f"5000 tokens, but the context of 'fake' holds {limit}:"
    ):
        await run(api, request_of(prompt=(65,) * 5000))
    with pytest.raises(InvalidArgument, match="no model 'other'"):
        await run(api, request_of(model="other"))


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("num_chunks", [0, 1, 3])
async def test_closing_early_frees_everything(
    api: Api, node: LocalNode, num_choices: int, num_chunks: int
) -> None:
    before = await level(node)
    request = request_of(max_tokens=200, num_choices=num_choices)
    async with aclosing(complete(api, request)) as chunks:
        for _ in range(num_chunks):
            await anext(chunks)
    assert await level(node) == before


@pytest.mark.parametrize("num_turns", range(0, 22, 3))
async def test_cancelling_at_any_turn_frees_everything(
    api: Api, node: LocalNode, num_turns: int
) -> None:
    before = await level(node)
    work = asyncio.ensure_future(run(api, request_of(max_tokens=200, num_choices=2)))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await level(node) == before


async def test_a_bad_grammar_fails_its_own_request_alone(api: Api) -> None:
    bad = request_of(grammar=json_schema('{"type": 7}'))
    outcomes = await asyncio.gather(run(api, bad), run(api, request_of()), return_exceptions=True)
    assert isinstance(outcomes[0], GrammarError | QueuePoisoned)
    assert not isinstance(outcomes[1], BaseException)


async def test_choices_that_do_not_fit_together_run_one_after_the_other() -> None:
    async with node_of(4, num_blocks=24) as node:
        api = connect_api(node.connect())
        three = await run(api, request_of(max_tokens=60, num_choices=3))
        (one,) = await run(api, request_of(max_tokens=60))
        assert [tokens(choice) for choice in three] == [tokens(one)] * 3
        api.close()


# -- what the model says ---------------------------------------------------------------------------


async def say(answer: str, **kwargs: object) -> list[ChoiceChunk]:
    node, _ = node_saying(lambda prompt: answer)
    async with node:
        api = connect_api(node.connect())
        (chunks,) = await run(api, request_of(**{"ignore_eos": False, "max_tokens": 50, **kwargs}))
        api.close()
        return chunks


async def test_the_end_token_is_no_text() -> None:
    chunks = await say("Hällo wörld")
    assert text(chunks) == "Hällo wörld"
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", None)
    assert tokens(chunks)[-1] in TOKENIZER.eos_token_ids


async def test_stop_strings_are_cut_and_named() -> None:
    chunks = await say("one two\nthree", stop=("\nth", "zzz"))
    assert text(chunks) == "one two"
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", "\nth")
    kept = await say("one two\nthree", stop=("\nth",), include_stop=True)
    assert text(kept) == "one two\nth"


async def test_stop_tokens_are_named_and_no_text() -> None:
    chunks = await say("abcdef", stop_token_ids=(ord("d"),))
    assert text(chunks) == "abc"
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", ord("d"))
    assert tokens(chunks)[-1] == ord("d")


async def test_a_cut_character_is_told_at_the_end() -> None:
    chunks = await say("aé", max_tokens=2)
    assert text(chunks) == "a\ufffd"
    assert chunks[-1].finish_reason == "length"


async def test_special_tokens_on_request() -> None:
    chunks = await say("a<|tool|>b", skip_special=False)
    assert text(chunks) == "a<|tool|>b"
    assert text(await say("a<|tool|>b")) == "ab"


def test_requests_are_values() -> None:
    assert replace(request_of(), max_tokens=9) == request_of(max_tokens=9)
