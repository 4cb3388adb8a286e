"""Chats with images are divided between engines as texts are: a lease brings what was seen."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from real_nodes import MODEL, TOKENIZER, RealNode, real_nodes
from router_world import World, world

from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.requests.request import Request
from quire.cluster.routing.strategy import StrategySource
from quire.core.engine_info import ImageInput

PNG = b"\x89PNG\r\n\x1a\n"
SEEN = ImageInput(
    num_embeds=20,
    token=TOKENIZER.special_id("<|tool|>"),
    max_bytes=1000,
    max_pixels=1000,
    formats=("PNG", "JPEG"),
)
TEXT = "Words before an image, which fill some pages of an engine. "


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2, SEEN) as nodes:
        yield nodes


def image(name: str) -> dict[str, Any]:
    data = base64.b64encode(PNG + name.encode()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def chat(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(parts)}]
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields
    return {"model": MODEL, "messages": messages, "return_token_ids": True, **fields}


async def answered(w: World, body: dict[str, Any]) -> list[list[int]]:
    return (await asked(w, body))[0]


async def asked(w: World, body: dict[str, Any]) -> tuple[list[list[int]], int]:
    """The tokens of each choice, and how many of the prompt were computed for it."""
    answer = await w.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choices, usage = answer.json()["choices"], answer.json()["usage"]
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    return [choice["token_ids"] for choice in choices], usage["prompt_tokens"] - num_cached


@pytest.mark.parametrize(
    ("name", "options", "num_brought"),
    [
        ("disaggregated", {}, 2),
        ("balanced", {"ratio": 0.05}, 2),
        ("balanced", {"ratio": 0.5}, 1),  # of the second, within the image: nothing is brought
    ],
)
async def test_the_answer_is_that_of_one_node(
    nodes: list[RealNode],
    name: str,
    options: dict[str, Any],
    num_brought: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = []

    async def sends(engine: Any, request: Request, received: Any, **places: Any) -> Any:
        answer = await send(engine, request, received, **places)
        sent.append(answer.num_tokens)
        return answer

    send = NodeEngine.remote_send
    monkeypatch.setattr(NodeEngine, "remote_send", sends)
    label = f"{name}{options}"
    bodies = [
        chat(text(label + TEXT), image("a"), text(" and "), image("b"), text(" behind them.")),
        chat(image(label), text("what follows."), n=2),
    ]
    async with world(nodes=nodes, strategy=StrategySource(name, options=options)) as w:
        found = [await asked(w, body) for body in bodies]
        divided = [tokens for tokens, _ in found]
        if name == "disaggregated":
            assert [num_computed for _, num_computed in found] == [1, 1], "no image is seen again"
        assert len(sent) == num_brought
        leases = [node.node.statistics().controller.num_leases for node in nodes]
        await w.put(name="data_parallel")
        alone = [await answered(w, body) for body in bodies]
        others = chat(text(label + TEXT), image("a"), text(" and "), image("c"), text(" behind."))
        assert await answered(w, others) != alone[0], "what it says depends on what it has seen"
    assert divided == alone
    assert leases == [0, 0]


async def test_a_lease_of_another_chat_is_left_alone(nodes: list[RealNode]) -> None:
    async with world(nodes=nodes) as w:
        engine, other = w.router.fleet.engines
        body = chat(image("x"), text("a chat"))
        headers = [(b"content-type", b"application/json")]
        request = Request("POST", "/v1/chat/completions", headers, msgspec.json.encode(body), "r")
        received = await engine.prep_recv(request, -1)
        await other.remote_send(request, received, begin=received.matched_len, end=received.end)
        another = msgspec.json.encode(chat(image("y"), text("a chat")))
        second = Request("POST", "/v1/chat/completions", headers, another, "r")
        answer = await engine.start_generate(second, received.end, received=received)
        pieces = b""
        while piece := await answer.read():
            pieces += piece
        answer.close()
        request.work.end()
        found = msgspec.json.decode(pieces)["choices"][0]["token_ids"]
        assert [found] == await answered(w, chat(image("y"), text("a chat")))


@pytest.mark.parametrize(
    ("parts", "is_divisible", "has_images"),
    [
        ([text("a")], True, False),
        ([text("a"), image("b")], True, True),
        ([{"type": "input_audio"}, image("b")], False, False),
        (["a"], False, False),
    ],
)
def test_which_chats_are_divisible(parts: list[Any], is_divisible: bool, has_images: bool) -> None:
    body = msgspec.json.encode({"messages": [{"role": "user", "content": parts}]})
    request = Request("POST", "/v1/chat/completions", [], body, "r")
    assert (request.is_divisible, request.has_images) == (is_divisible, has_images)
