"""Requests pass through the router as they are, and so do their answers."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from router_world import ADMIN_HEADERS, events, text_of, world
from stand_in_node import continuation

from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import TenantId


async def test_an_answer_passes_whole_and_streamed() -> None:
    async with world() as w:
        whole, streamed = await w.complete("Once"), await w.complete("Once", stream=True)
        assert text_of(whole) == text_of(streamed) == continuation("Once", 4)
        assert whole.headers["x-quire-node"] != streamed.headers["x-quire-node"]


async def test_a_body_reaches_the_node_byte_for_byte_with_query_and_key() -> None:
    body = b'{ "prompt" : "Hi",\n "max_tokens":2, "unknown": [1e3, "\\u00e9"] }'
    headers = {"authorization": "Bearer k", "content-type": "application/json", "x-own": "1"}
    async with world(1) as w:
        await w.http.post("/v1/completions?a=1&b=%2F", content=body, headers=headers)
        (asked,) = w.nodes[0].asked
        assert asked.body == body
        assert asked.target == "/v1/completions?a=1&b=%2F"
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.headers["x-own"] == "1"
        assert asked.headers["host"] == w.nodes[0].peer.url.removeprefix("http://")


async def test_a_node_key_replaces_the_clients() -> None:
    async with world(1, node_key="inner") as w:
        await w.complete(headers={"authorization": "Bearer outer", "x-api-key": "outer"})
        (asked,) = w.nodes[0].asked
        assert asked.headers["authorization"] == "Bearer inner"
        assert "x-api-key" not in asked.headers


async def test_a_strategy_with_options_nested_without_end_is_refused() -> None:
    deep = b"[" * 10_000 + b"]" * 10_000
    body = b'{"name": "least_used", "options": {"a": ' + deep + b"}}"
    async with world(1) as w:
        answer = await w.http.put("/router/strategy", content=body, headers=ADMIN_HEADERS)
        assert answer.status_code == 400, answer.text


async def test_the_request_id_is_the_same_on_both_sides() -> None:
    async with world(1) as w:
        answer = await w.complete(headers={"x-request-id": "mine-1"})
        assert answer.headers.get_list("x-request-id") == ["mine-1"]
        assert w.nodes[0].asked[0].headers["x-request-id"] == "mine-1"


async def test_connections_to_a_node_are_kept() -> None:
    async with world(1, cluster_key=None) as w:  # which asks the node for nothing else
        before = w.nodes[0].peer.num_connections
        for _ in range(5):
            await w.complete()
        assert w.nodes[0].peer.num_connections == before


async def test_events_are_passed_on_as_they_come() -> None:
    async with world(1) as w:
        node = w.nodes[0]
        node.tokens = asyncio.Semaphore(1)
        body = {"prompt": "Hi", "max_tokens": 3, "stream": True}
        async with w.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            assert "text" in await anext(lines)  # and the node waits
            node.tokens.release()
            node.tokens.release()
            assert len([line async for line in lines if line]) == 3


async def test_a_client_that_leaves_ends_the_work_at_the_node() -> None:
    async with world(1) as w:
        node = w.nodes[0]
        node.tokens = asyncio.Semaphore(0)
        task = asyncio.create_task(w.complete(stream=True))
        await node.has_been_asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await node.peer.left.wait()
        assert w.router.nodes[0].num_outstanding == 0


async def test_the_nodes_own_refusals_pass() -> None:
    async with world(1) as w:
        answer = await w.http.get("/v1/responses/resp_1")
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "not here"


async def test_keys_of_the_router_are_asked_for() -> None:
    tenants = (TenantConfig(TenantId("default"), ("key-1",)),)
    async with world(1, tenants=tenants) as w:
        assert (await w.complete()).status_code == 401
        assert (await w.complete(headers={"authorization": "Bearer key-1"})).status_code == 200
        assert (await w.http.get("/health")).status_code == 200


async def test_a_body_that_is_too_long_is_refused_before_any_node() -> None:
    async with world(1, server=ServerConfig(max_body_bytes=64)) as w:
        answer = await w.complete("x" * 100)
        assert answer.status_code == 413
        assert not w.nodes[0].asked


async def test_a_foreign_host_or_origin_is_refused() -> None:
    async with world(1) as w:
        assert (await w.complete(headers={"host": "evil.example"})).status_code == 403
        assert (await w.complete(headers={"origin": "https://evil.example"})).status_code == 403


async def test_the_routers_own_origin_is_no_other_site_to_a_node() -> None:
    async with world(1) as w:
        assert (await w.complete(headers={"origin": w.url})).status_code == 200
        assert "origin" not in w.nodes[0].asked[0].headers


async def test_lists_are_put_together_and_paged() -> None:
    async with world(2) as w:
        models = (await w.http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["stand-in"]


async def test_a_node_that_loads_does_not_hide_the_models_of_the_others() -> None:
    async with world(2) as w:
        w.nodes[0].models = []
        models = (await w.http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["stand-in"]
        w.nodes[1].models = []
        answer = await w.http.get("/v1/models")
        assert answer.status_code == 503
        assert "no model is loaded yet" in answer.json()["error"]["message"]


async def test_what_no_router_can_answer_names_who_does() -> None:
    async with world(1) as w:
        answer = await w.http.get("/v1/microserving/engines")
        assert answer.status_code == 404
        assert "x-quire-node" in answer.json()["error"]["message"]


async def test_a_client_may_name_the_node() -> None:
    async with world(3) as w:
        for _ in range(3):
            answer = await w.complete(headers={"x-quire-node": "node-2"})
            assert answer.headers["x-quire-node"] == "node-2"
        answer = await w.complete(headers={"x-quire-node": "node-9"})
        assert answer.status_code == 404
        assert "node-0, node-1, node-2" in answer.json()["error"]["message"]


async def test_the_engines_are_described() -> None:
    async with world(2) as w:
        described = (await w.http.get("/router/engines", headers=ADMIN_HEADERS)).json()["engines"]
        assert [one["name"] for one in described] == ["node-0", "node-1"]
        assert {one["state"] for one in described} == {"ready"}
        assert {(one["num_free_blocks"], one["epoch"]) for one in described} == {(7, 3)}
        metrics = (await w.http.get("/metrics")).text
        assert 'quire_router_node_ready{node="node-0"} 1.0' in metrics


async def test_an_unknown_model_is_no_nodes() -> None:
    async with world(1) as w:
        answer = await w.complete(model="other")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert not w.nodes[0].asked


async def test_a_model_is_asked_where_it_is_served() -> None:
    async with world(3) as w:
        w.nodes[1].models = ["big"]
        for node in w.router.nodes:
            node.figures = type(node.figures)(models=tuple(w.nodes[int(node.name[-1])].models))
        nodes = {(await w.complete(model="big")).headers["x-quire-node"] for _ in range(4)}
        assert nodes == {"node-1"}


async def test_streams_end_like_the_nodes() -> None:
    async with world(1) as w:
        answer = await w.complete(stream=True, max_tokens=3)
        assert len(events(answer.text)) == 3
        assert isinstance(answer, httpx.Response)
