"""The router over real nodes: their APIs through it, and their K and V moved by strategies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from real_nodes import MODEL, RealNode, real_nodes
from router_world import World, text_of, world
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from quire.cluster.requests.request import OF_CALLS, Request
from quire.cluster.routing.strategy import StrategySource
from quire.core.errors import InvalidArgument
from quire.server.schemas.completions import CompletionsRequest
from quire.server.schemas.microserving import StartGenerateRequest

PROMPT = [(7 * i) % 200 + 20 for i in range(300)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(3) as nodes:
        yield nodes


def of_openai(w: World) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{w.url}/v1", api_key="none", max_retries=0, http_client=w.http
    )


async def test_openais_client_streams_through_it(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes, strategy="data_parallel") as w:
        for _ in range(3):
            stream = await of_openai(w).chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=5, stream=True
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].choices[0].finish_reason == "length"


async def test_stored_responses_conversations_and_files_are_found(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w, world(nodes=nodes) as other:
        first, second = of_openai(w), of_openai(other)
        response = await first.responses.create(model=MODEL, input="Hi", max_output_tokens=4)
        for client in (first, second):
            followed = await client.responses.create(
                model=MODEL, input="On", max_output_tokens=4, previous_response_id=response.id
            )
            assert (await client.responses.retrieve(followed.id)).id == followed.id
        conversation = await first.conversations.create()
        await second.responses.create(
            model=MODEL, input="Hi", max_output_tokens=4, conversation=conversation.id
        )
        assert len((await first.conversations.items.list(conversation.id)).data) == 2
        made = [
            await first.files.create(file=(f"{n}.jsonl", b"{}\n"), purpose="batch")
            for n in range(3)
        ]
        assert (await second.files.content(made[0].id)).content == b"{}\n"
        listed = [file.id async for file in second.files.list(limit=2)]
        assert {file.id for file in made} <= set(listed)
        with pytest.raises(openai.NotFoundError):
            await second.responses.retrieve("resp_unknown")


async def test_items_are_referred_to_where_they_are_stored(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w, world(nodes=nodes) as other:
        first, second = of_openai(w), of_openai(other)
        for at in ("real-0", "real-1"):
            named = {"x-quire-node": at}
            response = await first.responses.create(
                model=MODEL, input="Hi", max_output_tokens=4, extra_headers=named
            )
            reference: Any = {"type": "item_reference", "id": response.output[0].id}
            followed = await second.responses.with_raw_response.create(
                model=MODEL, input=[reference, {"role": "user", "content": "On"}]
            )
            assert followed.headers["x-quire-node"] == at
            conversation = await second.conversations.with_raw_response.create(items=[reference])
            assert conversation.headers["x-quire-node"] == at
        nowhere: Any = [{"type": "item_reference", "id": "msg_unknown"}]
        with pytest.raises(openai.BadRequestError, match="no stored item 'msg_unknown'"):
            await second.responses.create(model=MODEL, input=nowhere)


async def test_sessions_are_one_list_and_each_at_one_node(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes, strategy="data_parallel") as w:
        made = (await w.http.post("/v1/sessions", json={"kind": "agent"})).json()
        named = (await w.http.post("/v1/sessions", json={"id": "my-session"})).json()
        for session in (made, named):
            for header in ("x-quire-program-id", "x-session-id"):
                await w.complete("Hi", headers={header: session["id"]})
            found = (await w.http.get(f"/v1/sessions/{session['id']}")).json()
            assert found["num_calls"] == 2
            await w.complete("Hi", headers={"x-quire-program-id": session["program"]})
            found = (await w.http.get(f"/v1/sessions/{session['program']}")).json()
            assert found["num_calls"] == 3
        listed = (await w.http.get("/v1/sessions?limit=100")).json()["data"]
        assert {made["id"], named["id"]} <= {session["id"] for session in listed}


async def test_a_program_is_attached_through_it(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        launch = {"program": "text_completion", "named_args": {"prompt": "Hi", "max_tokens": 4}}
        launched = (await w.http.post("/v1/programs", json=launch)).json()
        url = f"{w.url.replace('http', 'ws')}/v1/programs/{launched['id']}/attach"
        async with connect(url, proxy=None) as socket:
            frames = [json.loads(frame) async for frame in socket]
        assert frames[-1]["type"] == "ended"
        assert frames[-1]["program"]["id"] == launched["id"]
        assert socket.close_code == 1000
        record = (await w.http.get(f"/v1/programs/{launched['id']}")).json()
        assert record["id"] == launched["id"]
        ids = [one["id"] for one in (await w.http.get("/v1/programs")).json()["data"]]
        assert ids.count(launched["id"]) == 1


async def test_a_socket_to_no_program_is_refused(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        for path in ("/v1/programs/prog-none/attach", "/v1/else"):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(w.url.replace("http", "ws") + path, proxy=None):
                    pass
            assert refused.value.response.status_code == 404


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("disaggregated", {}),
        ("balanced", {"ratio": 0.2}),
        ("balanced", {"ratio": -1.0}),
        ("migrating", {"max_extra": 0, "min_tokens": 16}),
    ],
)
async def test_a_divided_answer_is_that_of_one_node(
    nodes: list[RealNode], name: str, options: dict[str, Any]
) -> None:
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "model": MODEL}
    start = [len(name) + 30, int(10 * options.get("ratio", 0)) + 30, len(options) + 20]
    prompts: list[Any] = [[*start, *PROMPT[:n]] for n in (300, 200, 17)]
    prompts += ["A text of several words, which is a prompt.", [77]]
    async with world(nodes=nodes, strategy=StrategySource(name, options=options)) as w:
        divided = [
            text_of(await w.complete(prompt, stream=bool(turn % 2), **fields))
            for turn, prompt in enumerate(prompts)
        ]
        together = await asyncio.gather(*(w.complete(prompt, **fields) for prompt in prompts * 2))
        await w.put(name="data_parallel")
        alone = [text_of(await w.complete(prompt, **fields)) for prompt in prompts]
    assert divided == alone
    assert list(map(text_of, together)) == alone * 2


@pytest.mark.parametrize("strategy", ["disaggregated", "data_parallel"])
async def test_fields_of_the_calls_are_refused_however_a_request_is_served(
    nodes: list[RealNode], strategy: str
) -> None:
    async with world(nodes=nodes, strategy=strategy) as w:
        for name, value in (("request_id", "r"), ("begin", 3), ("num_generated", 1)):
            refused = await w.complete(PROMPT, model=MODEL, max_tokens=2, **{name: value})
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, name)
        assert (await w.complete(PROMPT, model=MODEL, max_tokens=2)).status_code == 200


async def test_a_strategy_that_divides_a_request_with_such_a_field_is_refused(
    nodes: list[RealNode],
) -> None:
    async with world(nodes=nodes) as w:
        engine, *_ = w.router.fleet.engines
        body = {"model": MODEL, "prompt": PROMPT, "request_id": "r"}
        encoded = msgspec.json.encode(body)
        request = Request("POST", "/v1/completions", [], encoded, "r")
        assert not request.is_divisible
        with pytest.raises(InvalidArgument, match="'request_id' belongs to the calls"):
            await engine.prep_recv(request, -1)
        with pytest.raises(InvalidArgument, match="'request_id' belongs to the calls"):
            await engine.start_generate(request, 3)


def test_the_fields_of_the_calls_are_those_that_a_completion_lacks() -> None:
    known = StartGenerateRequest.model_fields.keys() - CompletionsRequest.model_fields.keys()
    assert known == set(OF_CALLS)


async def test_a_divided_chat_is_that_of_one_node(nodes: list[RealNode]) -> None:
    content = "Words that no other test has said, one after the other. " * 4
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 6,
        "temperature": 0,
    }
    async with world(nodes=nodes, strategy="disaggregated") as w:
        divided = (await w.http.post("/v1/chat/completions", json=body)).json()
        assert divided["usage"]["prompt_tokens"] > 100
        await w.put(name="data_parallel")
        alone = (await w.http.post("/v1/chat/completions", json=body)).json()
    assert divided["choices"][0]["message"] == alone["choices"][0]["message"]


async def test_the_three_calls_have_moved_something(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes, strategy="disaggregated") as w:
        prompt = [99, 98, *PROMPT]
        answer = await w.complete(prompt, model=MODEL)
        assert answer.status_code == 200, answer.text
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= len(prompt) // 16 * 16 - 16
        described = (
            await w.http.get("/router/engines", headers={"authorization": "Bearer the-admin-key"})
        ).json()["engines"]
        assert {one["num_blocks"] for one in described} == {256}
