"""Responses in the background outlive their node under their ids, or are reported as failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from linked_nodes import LinkedWorld, linked
from real_nodes import MODEL, RealNode, real_nodes
from router_world import ADMIN_HEADERS, World

NUM_TOKENS = 12


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2) as nodes:
        yield nodes


async def created(w: World, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "Once", "max_output_tokens": NUM_TOKENS, "temperature": 0}
    answer = await w.http.post("/v1/responses", json={**body, "background": True, **fields})
    assert answer.status_code == 200, answer.text
    return answer


async def ended(w: World, id: str) -> tuple[dict[str, Any], str]:
    """Wait for the end of the response; return it and the node that has it."""
    while True:
        answer = await w.http.get(f"/v1/responses/{id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        if found["status"] not in ("queued", "in_progress"):
            return found, answer.headers.get("x-quire-node", "")
        await asyncio.sleep(0.01)


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def is_forgotten_at(c: LinkedWorld, node: str, id: str) -> None:
    """Wait until the node, which was only cut off, has ended the response that goes on
    elsewhere."""
    while True:
        answer = await c.w.http.get(f"/v1/responses/{id}", headers={"x-quire-node": node})
        if answer.status_code == 404:
            return
        await asyncio.sleep(0.01)


async def test_one_whose_node_is_lost_begins_again_at_another_one(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        expected, _ = await ended(c.w, (await created(c.w)).json()["id"])
        answer = await created(c.w)
        at, first = answer.headers["x-quire-node"], answer.json()
        await c.lose(at)
        found, node = await ended(c.w, first["id"])
        assert node != at
        assert found["status"] == expected["status"] == "incomplete", "it has its tokens"
        assert (found["id"], found["created_at"]) == (first["id"], first["created_at"])
        assert text_of(found) == text_of(expected)
        await c.find_again(at)
        await is_forgotten_at(c, at, first["id"])
        assert (await ended(c.w, first["id"]))[1] == node


async def test_one_that_no_node_takes_now_is_queued(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        answer = await created(c.w)
        at, id = answer.headers["x-quire-node"], answer.json()["id"]
        (other,) = {node.name for node in nodes} - {at}
        await c.lose(other)
        await c.lose(at)
        for _ in range(2):
            found = (await c.w.http.get(f"/v1/responses/{id}")).json()
            assert (found["id"], found["status"]) == (id, "queued")
        await c.find_again(other)
        (url,) = (node.peer.url for node in nodes if node.name == other)
        async with httpx.AsyncClient(base_url=url) as direct:  # nobody need ask the router
            while True:
                if (await direct.get(f"/v1/responses/{id}")).status_code == 200:
                    break
                await asyncio.sleep(0.01)
        assert (await ended(c.w, id))[0]["status"] == "incomplete"
        await c.find_again(at)


@pytest.mark.parametrize("resumes", [True, False])
async def test_one_whose_node_is_removed_begins_again_or_has_failed(
    nodes: list[RealNode], resumes: bool
) -> None:
    async with linked(nodes) as c:
        if not resumes:
            c.w.router.background._cluster_key = None
        answer = await created(c.w)
        at, id = answer.headers["x-quire-node"], answer.json()["id"]
        kept = [f"{one.name}={one.address.url}" for one in c.w.router.nodes if one.name != at]
        said = await c.w.http.put("/router/nodes", json={"nodes": kept}, headers=ADMIN_HEADERS)
        assert said.status_code == 200, said.text
        found, node = await ended(c.w, id)
        (url,) = (one.peer.url for one in nodes if one.name == at)
        async with httpx.AsyncClient(base_url=url) as direct:
            if resumes:
                assert (found["id"], found["status"]) == (id, "incomplete"), "it has its tokens"
                assert node not in ("", at)
                while True:
                    if (await direct.get(f"/v1/responses/{id}")).status_code == 404:
                        break
                    await asyncio.sleep(0.01)
                assert not c.w.router.background._left
            else:
                assert found["status"] == "failed"
                assert f"its node {at} was removed from the router" in found["error"]["message"]
                assert (await direct.delete(f"/v1/responses/{id}")).status_code == 200


@pytest.mark.parametrize("deletes", [True, False])
async def test_one_that_is_not_wanted_any_more_does_not_begin_again(
    nodes: list[RealNode], deletes: bool
) -> None:
    async with linked(nodes) as c:
        answer = await created(c.w)
        at, id = answer.headers["x-quire-node"], answer.json()["id"]
        (other,) = {node.name for node in nodes} - {at}
        await c.lose(other)
        await c.lose(at)
        path = f"/v1/responses/{id}"
        if deletes:
            said = (await c.w.http.delete(path)).json()
            assert said == {"id": id, "object": "response", "deleted": True}
            assert c.w.router.background._num_bytes == 0
            assert [one.request for one in c.w.router.background._left[at]] == [None]
        else:
            said = (await c.w.http.post(f"{path}/cancel")).json()
            assert (said["id"], said["status"]) == (id, "cancelled")
            assert (await c.w.http.get(path)).json()["status"] == "cancelled"
        await c.find_again(other)
        await c.find_again(at)
        urls = {node.name: node.peer.url for node in nodes}
        async with httpx.AsyncClient() as direct:
            while True:
                if (await direct.get(f"{urls[at]}{path}")).status_code == 404:
                    break
                await asyncio.sleep(0.01)
            assert (await direct.get(f"{urls[other]}{path}")).status_code == 404


@pytest.mark.parametrize(
    ("fields", "resumes", "why"),
    [
        ({}, False, "no --resume"),
        ({"stream": True}, True, "its events were told"),
        ({"conversation": "own"}, True, "its node alone had"),
    ],
)
async def test_one_that_cannot_begin_again_has_failed_and_says_why(
    nodes: list[RealNode], fields: dict[str, Any], resumes: bool, why: str
) -> None:
    async with linked(nodes) as c:
        if not resumes:
            c.w.router.background._cluster_key = None
        if "conversation" in fields:
            own = (await c.w.http.post("/v1/conversations", json={})).json()["id"]
            fields = {"conversation": own}
        answer = await created(c.w, **fields)
        at = answer.headers["x-quire-node"]
        (id,) = c.w.router.background._begun
        await c.lose(at)
        found, _ = await ended(c.w, id)
        assert found["status"] == "failed"
        assert found["error"]["code"] == "engine_lost"
        assert why in found["error"]["message"]
        assert at in found["error"]["message"]
        strange = await c.w.http.get(f"/v1/responses/{id}", headers={"x-api-key": "another"})
        assert strange.status_code == 503, "who asks with another key is not told"
        await c.find_again(at)
        assert (await ended(c.w, id))[0]["status"] == "failed", "as it was said before"
        assert (await c.w.http.delete(f"/v1/responses/{id}")).status_code == 200
        assert (await c.w.http.get(f"/v1/responses/{id}")).status_code == 404


async def test_nothing_is_kept_of_what_its_client_has_seen_to_the_end(
    nodes: list[RealNode],
) -> None:
    async with linked(nodes) as c:
        id = (await created(c.w)).json()["id"]
        assert list(c.w.router.background._begun) == [id]
        assert c.w.router.background._num_bytes > 0
        await ended(c.w, id)
        assert not c.w.router.background._begun
        assert c.w.router.background._num_bytes == 0
