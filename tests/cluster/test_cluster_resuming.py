"""A streamed completion whose node is lost goes on at another one, behind the last token."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from http_peer import refused
from router_world import events, text_of, until, world
from stand_in_node import continuation

from quire.cluster.config import RouterConfig
from quire.cluster.passing import resuming
from quire.cluster.passing.resuming import resumable
from quire.cluster.requests.request import Request
from quire.cluster.routing.strategy import StrategySource
from quire.core.errors import ConfigError

PROMPT = "Once upon a time"
NUM_TOKENS = 12


@pytest.mark.parametrize("num_before", [1, 5, NUM_TOKENS - 1])
@pytest.mark.parametrize("strategy", ["data_parallel", "disaggregated"])
async def test_the_client_sees_one_stream(num_before: int, strategy: str) -> None:
    async with world(3, strategy, resumes=True) as w:
        for node in w.nodes:
            node.cut_after = num_before
        task = asyncio.create_task(w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS))
        await until(lambda: any(node.num_streams for node in w.nodes))
        for node in w.nodes:  # what has begun breaks off, what follows does not
            node.cut_after = None if not node.num_streams else node.cut_after
        answer = await task
        assert text_of(answer) == continuation(PROMPT, NUM_TOKENS)
        told = events(answer.text)
        assert len(told) == NUM_TOKENS
        assert {event["id"] for event in told} == {told[0]["id"]}
        assert not any("token_ids" in event["choices"][0] for event in told)
        (body,) = (
            body
            for node in w.nodes
            for call, body in node.calls
            if call == "start_generate" and "num_generated" in body
        )
        assert body["num_generated"] == num_before
        assert [node.num_outstanding for node in w.router.nodes] == [0, 0, 0]


async def test_it_goes_on_as_often_as_needed() -> None:
    async with world(4, resumes=True) as w:
        for node, after in zip(w.nodes, (2, 3, 4), strict=False):
            node.cut_after = after
        answer = await w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS)
        assert text_of(answer) == continuation(PROMPT, NUM_TOKENS)


async def test_tokens_and_usage_are_those_of_one_stream() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].cut_after = 4
        fields = {"stream_options": {"include_usage": True}, "return_token_ids": True}
        answer = await w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS, **fields)
        *told, usage = events(answer.text)
        ids = [token for event in told for token in event["choices"][0]["token_ids"]]
        assert "".join(map(chr, ids)) == continuation(PROMPT, NUM_TOKENS)
        prompts = [event for event in told if "prompt_token_ids" in event["choices"][0]]
        assert prompts == told[:1]
        assert usage["usage"] == {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": NUM_TOKENS,
            "prompt_tokens_details": {"cached_tokens": len(PROMPT)},
        }


async def test_what_has_lost_nothing_but_its_end_is_complete() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].cut_after = 6
        assert len(events((await w.complete(stream=True, max_tokens=6)).text)) == 6
        assert not w.nodes[1].calls
        fields = {"stream_options": {"include_usage": True}}  # which nobody else can tell
        for node in w.nodes:
            node.cut_after = 6
        *_, last = events((await w.complete(stream=True, max_tokens=6, **fields)).text)
        assert last["error"]["code"] == "engine_lost"
        assert not any(call == "start_generate" for call, _ in w.nodes[0].calls)


@pytest.mark.parametrize(("most", "goes_on"), [(5, True), (4, False)])
async def test_an_answer_goes_on_up_to_a_number_of_tokens(
    most: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "MAX_TOKENS", most)
    async with world(2, resumes=True) as w:
        w.nodes[0].cut_after = 5
        answer = await w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS)
        assert ("error" in answer.text) is not goes_on
        assert bool(w.nodes[1].calls) is goes_on


async def test_without_another_engine_the_error_is_the_end() -> None:
    async with world(1, resumes=True) as w:
        w.nodes[0].cut_after = 4
        *tokens, last = events((await w.complete(stream=True, max_tokens=8)).text)
        assert (len(tokens), last["error"]["code"]) == (4, "engine_lost")


async def test_an_engine_that_refuses_is_passed_over() -> None:
    async with world(3, resumes=True) as w:
        w.nodes[0].cut_after = 4
        w.nodes[1].call_refusals["start_generate"] = refused(503, "capacity", "full")
        answer = await w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS)
        assert text_of(answer) == continuation(PROMPT, NUM_TOKENS)


async def test_a_client_that_leaves_afterwards_ends_the_second_stream() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].cut_after = 4
        w.nodes[1].tokens = asyncio.Semaphore(2)
        task = asyncio.create_task(w.complete(stream=True, max_tokens=NUM_TOKENS))
        await until(lambda: w.nodes[1].num_streams == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await w.nodes[1].peer.left.wait()


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"n": 2},
        {"echo": True},
        {"logprobs": 1},
        {"prompt": ["two", "prompts"]},
    ],
)
def test_what_cannot_go_on_is_left_as_it_is(fields: dict[str, Any]) -> None:
    body = msgspec.json.encode({"prompt": "x", "stream": True, **fields})
    request = Request("POST", "/v1/completions", [], body, "r")
    assert resumable(request) is request


def test_a_seed_is_chosen_so_that_samples_go_on() -> None:
    for given, wanted in (({}, None), ({"seed": None}, None), ({"seed": 7}, 7)):
        body = msgspec.json.encode({"prompt": "x", "stream": True, **given})
        asked = resumable(Request("POST", "/v1/completions", [], body, "r"))
        assert isinstance(asked.fields["seed"], int)
        assert wanted in (None, asked.fields["seed"])


def test_it_needs_the_cluster_key() -> None:
    with pytest.raises(ConfigError, match="--cluster-key-file"):
        RouterConfig(nodes=(), strategy=StrategySource("least_used"), resumes=True)
