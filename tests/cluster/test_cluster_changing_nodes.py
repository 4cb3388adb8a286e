"""A router gets other nodes while it serves: no request is lost, and what leaves ends its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from router_world import ADMIN_HEADERS, World, num_told, text_of, until, world
from stand_in_node import StandInNode, continuation

from quire.cluster.metrics import RouterMetrics
from quire.cluster.nodes.watch import WatchTimes

PROMPT = "Once upon a time"
NUM_TOKENS = 12


def texts(nodes: Sequence[StandInNode]) -> list[str]:
    return [f"{node.name}={node.peer.url}" for node in nodes]


async def put(w: World, nodes: Sequence[StandInNode]) -> httpx.Response:
    return await put_json(w, {"nodes": texts(nodes)})


async def put_json(w: World, body: object) -> httpx.Response:
    return await w.http.put("/router/nodes", json=body, headers=ADMIN_HEADERS)


@asynccontextmanager
async def another(w: World, name: str) -> AsyncIterator[StandInNode]:
    node = StandInNode(name, w.nodes[0].fleet)
    async with node.peer:
        yield node


async def begun(w: World) -> asyncio.Task[httpx.Response]:
    """A stream of which node-0 has told five tokens, and will tell no more."""
    w.nodes[0].tokens = asyncio.Semaphore(5)
    task = asyncio.create_task(w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS))
    await until(lambda: bool(w.nodes[0].num_streams) and w.nodes[0].tokens.locked())
    return task


async def leaving(w: World) -> list[str]:
    told = (await w.http.get("/router/nodes", headers=ADMIN_HEADERS)).json()
    return [one["name"] for one in told["leaving"]]


async def test_new_nodes_get_work_and_others_none() -> None:
    async with world(2) as w, another(w, "node-2") as new:
        answer = await put(w, [w.nodes[1], new])
        assert answer.json() == {
            "nodes": texts([w.nodes[1], new]),
            "leaving": [],
            "num_moved": 0,
            "num_programs_moved": 0,
        }
        found = {(await w.complete()).headers["x-quire-node"] for _ in range(6)}
        assert found == {"node-1", "node-2"}
        told = (await w.http.get("/router/engines", headers=ADMIN_HEADERS)).json()["engines"]
        assert [(one["name"], one["state"]) for one in told] == [
            ("node-1", "ready"),
            ("node-2", "ready"),
        ]
        assert 'quire_router_node_ready{node="node-2"} 1.0' in (await w.http.get("/metrics")).text
        assert "node-0" not in (await w.http.get("/metrics")).text.partition("requests_total")[0]


async def test_a_node_that_has_left_has_no_series() -> None:
    async with world(2) as w:
        found = {(await w.complete()).headers["x-quire-node"] for _ in range(4)}
        assert found == {"node-0", "node-1"}
        assert (
            await w.http.get("/v1/files/none", headers={"x-quire-node": "x"})
        ).status_code == 404
        counts = 'quire_router_requests_total{node="node-0",outcome="finished"} 2.0'
        assert counts in (await w.http.get("/metrics")).text
        await put(w, w.nodes[1:])
        after = (await w.http.get("/metrics")).text
        assert "node-0" not in after
        assert counts.replace("node-0", "node-1") in after
        assert 'quire_router_requests_total{node="",outcome="failed"} 1.0' in after


async def test_nor_is_anything_kept_of_it_while_nobody_reads_the_series() -> None:
    fleet = SimpleNamespace(engines=[], leaving=[])
    metrics = RouterMetrics(fleet, cast(Any, None), cast(Any, None))  # type: ignore[arg-type]
    for number in range(100):
        name = f"node-{number}"
        fleet.engines = [SimpleNamespace(name=name)]
        metrics.began(name, 0.1)
        metrics.ended(name, "finished")
        fleet.engines, fleet.leaving = [], [SimpleNamespace(name=name)]
        metrics.ended(name, "aborted")
        fleet.leaving = []
    assert metrics._shown == {"node-99"}
    assert {labels[0] for labels in metrics._requests._metrics} == {"node-99"}
    assert {labels[0] for labels in metrics._first._metrics} == {"node-99"}


async def test_a_stream_at_a_node_that_leaves_goes_on_to_its_end() -> None:
    async with world(1) as w, another(w, "node-1") as new:
        task = await begun(w)
        (node,) = w.router.nodes
        answer = await put(w, [new])
        assert [one["name"] for one in answer.json()["leaving"]] == ["node-0"]
        assert (await w.complete()).headers["x-quire-node"] == "node-1"
        assert await leaving(w) == ["node-0"]
        assert w.nodes[0].tokens is not None
        for _ in range(NUM_TOKENS):
            w.nodes[0].tokens.release()
        assert text_of(await task) == continuation(PROMPT, NUM_TOKENS)
        await until(lambda: not w.router.fleet.leaving)
        await until(lambda: node.pool.num_idle + node.pool.num_busy == 0)
        assert await leaving(w) == []


async def test_with_resume_it_moves_to_a_node_that_stays() -> None:
    async with world(1, resumes=True) as w, another(w, "node-1") as new:
        task = await begun(w)
        await until(lambda: all(num_told(one) == 5 for one in w.router.moves._running))
        assert (await put(w, [new])).json()["num_moved"] == 1
        assert text_of(await task) == continuation(PROMPT, NUM_TOKENS)
        await until(lambda: not w.router.fleet.leaving)


async def test_a_node_that_leaves_and_dies_does_not_keep_its_requests() -> None:
    async with world(1) as w, another(w, "node-1") as new:
        task = await begun(w)
        (watch,) = w.router.fleet.watches
        await put(w, [new])
        watch._times = WatchTimes(timeout_s=0.0)  # its probes are not answered
        await watch.probe()
        await watch.probe()
        assert '"error"' in (await task).text
        await until(lambda: not w.router.fleet.leaving)


async def test_a_node_that_leaves_can_come_back() -> None:
    async with world(1) as w, another(w, "node-1") as new:
        task = await begun(w)
        (before,) = w.router.nodes
        await put(w, [new])
        assert (await put(w, [w.nodes[0]])).json()["leaving"] == []
        (after,) = w.router.nodes
        assert after is before
        assert after.takes_work
        assert after.num_outstanding == 1
        told = (await w.http.get("/router/engines", headers=ADMIN_HEADERS)).json()["engines"]
        assert told[0]["draining"] is False
        assert w.nodes[0].tokens is not None
        for _ in range(NUM_TOKENS + 4):
            w.nodes[0].tokens.release()
        assert (await task).status_code == 200
        assert (await w.complete()).headers["x-quire-node"] == "node-0"


async def test_a_node_that_moves_keeps_its_name() -> None:
    async with world(1) as w, another(w, "node-0") as moved:
        await put(w, [moved])
        assert (await w.complete()).headers["x-quire-node"] == "node-0"
        assert len(moved.asked) == 1
        assert not w.nodes[0].asked


async def test_what_a_removed_node_had_is_asked_for_anew() -> None:
    async with world(2) as w:
        for node in w.nodes:
            node.stored = {"resp-1"}
        first = (await w.http.get("/v1/responses/resp-1")).headers["x-quire-node"]
        (other,) = (node for node in w.nodes if node.name != first)
        await put(w, [other])
        again = await w.http.get("/v1/responses/resp-1")
        assert (again.status_code, again.headers["x-quire-node"]) == (200, other.name)


async def test_sent_again_it_changes_nothing() -> None:
    async with world(2) as w:
        before = w.router.nodes
        assert (await put(w, w.nodes)).json()["leaving"] == []
        assert w.router.nodes == before


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"nodes": []}, "a router needs at least one node"),
        ({"nodes": ["ftp://a"]}, "'ftp://a' is not the address of a node"),
        ({"nodes": ["a=http://h:1", "a=http://h:2"]}, "2 nodes have the name 'a'"),
        ({"nodes": "http://h"}, "the body must be"),
        ({"names": []}, "the body must be"),
        (None, "the body must be"),
    ],
)
async def test_what_is_no_set_of_nodes_is_refused(body: object, says: str) -> None:
    async with world(1) as w:
        before = w.router.nodes
        answer = await put_json(w, body)
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]
        empty = await w.http.put("/router/nodes", headers=ADMIN_HEADERS)
        assert empty.status_code == 400
        assert w.router.nodes == before


async def test_who_may_change_them() -> None:
    async with world(1) as w:
        body = {"nodes": texts(w.nodes)}
        assert (await w.http.put("/router/nodes", json=body)).status_code == 401
        assert (await w.http.post("/router/nodes", headers=ADMIN_HEADERS)).status_code == 405
    async with world(1, admin_key=None) as w:
        assert (await put(w, w.nodes)).status_code == 403
        assert await leaving(w) == []
