"""Routers know what nodes have: over HTTP, from real nodes with fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from real_nodes import RealNode, real_nodes
from router_world import World, until, world

from quire.cluster.routing.strategy import StrategySource

PROMPT = [(7 * i) % 200 + 20 for i in range(300)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    """Each has computed a page, so a router that has heard of one follows the node's index."""
    with real_nodes(3) as nodes:
        for node in nodes:
            body = {"prompt": [19, *PROMPT[1:17]], "max_tokens": 1}
            assert httpx.post(f"{node.peer.url}/v1/completions", json=body).status_code == 200
        yield nodes


async def complete(url: str, prompt: list[int], **fields: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url) as http:
        return await http.post(
            "/v1/completions", json={"prompt": prompt, "max_tokens": 4, **fields}
        )


async def heard(w: World, node: RealNode, num_pages: int) -> None:
    """Until the router knows of so many pages of ``node``."""

    def known() -> int:
        return sum(len(tree.keys) for tree in w.router.pages.trees(node.name).values())

    await until(lambda: known() >= num_pages)


async def test_cache_aware_goes_to_what_others_have_computed(nodes: list[RealNode]) -> None:
    prompts = [[number, *PROMPT[1:]] for number in (20, 21, 22)]
    for node, prompt in zip(nodes, prompts, strict=True):
        alone = await complete(node.peer.url, prompt)
        assert alone.status_code == 200
    async with world(nodes=nodes, strategy="cache_aware") as w:
        for node in nodes:
            await heard(w, node, 300 // 16)
        for node, prompt in [*zip(nodes, prompts, strict=True)] * 2:
            answer = await w.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4})
            assert answer.headers["x-quire-node"] == node.name
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == 300 // 16 * 16
        w.router.pages.check_invariants()


async def test_what_is_computed_while_a_router_listens_is_known(nodes: list[RealNode]) -> None:
    node, chat = nodes[1], [{"role": "user", "content": "What rain does to roofs. " * 20}]
    async with world(nodes=nodes, strategy="cache_aware") as w:
        await heard(w, node, 1)
        (tree,) = w.router.pages.trees(node.name).values()
        before = len(tree.keys)
        async with httpx.AsyncClient(base_url=node.peer.url) as http:
            body = {"messages": chat, "max_tokens": 2}
            alone = (await http.post("/v1/chat/completions", json=body)).json()
        await heard(w, node, before + (alone["usage"]["prompt_tokens"] - 1) // 16)
        for engine in w.router.fleet.engines:  # none of them has more to do than the others
            assert engine.load == 0
        answer = await w.http.post("/v1/chat/completions", json=body)
        assert answer.headers["x-quire-node"] == node.name
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


async def test_requests_that_come_together_meet_where_the_first_went(
    nodes: list[RealNode],
) -> None:
    prompt = [40, *PROMPT[1:]]
    async with world(nodes=nodes, strategy="cache_aware") as w:
        await heard(w, nodes[0], 1)
        body = {"prompt": prompt, "max_tokens": 2}
        answers = await asyncio.gather(
            *(w.http.post("/v1/completions", json=body) for _ in range(4))
        )
        assert len({answer.headers["x-quire-node"] for answer in answers}) == 1


async def test_a_prompt_that_is_refused_is_refused_by_the_node_itself(
    nodes: list[RealNode],
) -> None:
    async with world(nodes=nodes, strategy="cache_aware") as w:
        await heard(w, nodes[0], 1)
        answer = await w.http.post("/v1/completions", json={"prompt": [9] * 5000})
        assert answer.status_code == 400
        assert "microserving" not in answer.json()["error"]["message"]


async def test_pages_of_a_busy_node_are_brought_to_another(nodes: list[RealNode]) -> None:
    prompt, body = [50, *PROMPT[1:]], {"max_tokens": 8, "temperature": 0}
    expected = (await complete(nodes[1].peer.url, prompt, **body)).json()["choices"][0]["text"]
    strategy = StrategySource("quire", options={"call_s": 0.0, "bytes_per_s": 1e12})
    async with world(nodes=nodes, strategy=strategy) as w:
        await heard(w, nodes[1], 1)
        w.router.nodes[1].num_others = 1_000_000  # so that nothing else may be cheaper
        answer = await w.http.post("/v1/completions", json={"prompt": prompt, **body})
        assert answer.headers["x-quire-node"] != nodes[1].name
        said = answer.json()
        assert said["choices"][0]["text"] == expected
        assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 300 // 16 * 16
