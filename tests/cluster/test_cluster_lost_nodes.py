"""Nodes that die, go silent or refuse: what a client sees of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from http_peer import Asked, Cut, HttpPeer, Said, refused, said
from prometheus_client.parser import text_string_to_metric_families
from router_world import ADMIN_HEADERS, World, events, text_of, until, world
from stand_in_node import continuation

from quire.cluster.nodes.addresses import read_address
from quire.cluster.nodes.liveness import Liveness
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.watch import NodeWatch, WatchTimes


async def test_a_request_that_has_delivered_nothing_is_tried_elsewhere() -> None:
    async with world(2) as w:
        await w.nodes[0].peer.die()
        answers = [await w.complete(stream=bool(turn % 2)) for turn in range(4)]
        assert {text_of(answer) for answer in answers} == {continuation("Hi", 4)}
        assert {answer.headers["x-quire-node"] for answer in answers} == {"node-1"}


async def test_an_answer_that_breaks_before_its_first_token_is_tried_elsewhere() -> None:
    async with world(2) as w:
        w.nodes[0].cut_after = 0
        for stream in (True, True, False, False):
            assert text_of(await w.complete(stream=stream)) == continuation("Hi", 4)
        assert w.nodes[0].asked


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    async with world(1) as w:
        w.nodes[0].cut_after = 2
        *tokens, last = events((await w.complete(stream=True)).text)
        assert len(tokens) == 2
        assert last["error"]["code"] == "engine_lost"
        assert "node-0" in last["error"]["message"]


async def test_a_stream_of_anthropic_breaks_in_anthropics_form() -> None:
    async with world(1) as w:

        async def pieces() -> AsyncIterator[bytes]:
            yield b'event: ping\ndata: {"type": "ping"}\n\nevent: content'
            raise Cut

        w.nodes[0].refusal = Said(pieces=pieces(), kind="text/event-stream")
        answer = await w.http.post("/v1/messages", json={"messages": []})
        assert "event: content" not in answer.text  # an event passes whole or not at all
        assert answer.text.count("event: error") == 1


async def test_a_full_node_leaves_the_request_to_others() -> None:
    async with world(2) as w:
        w.nodes[0].refusal = refused(503, "capacity", "full")
        for _ in range(4):
            assert (await w.complete()).status_code == 200
        w.nodes[1].refusal = w.nodes[0].refusal
        answer = await w.complete()
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "full"


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "mine"}])
async def test_all_nodes_are_asked_before_a_request_is_refused(headers: dict[str, str]) -> None:
    async with world(7) as w:
        for node in w.nodes:
            node.refusal = refused(503, "capacity", "full")
        answer = await w.complete(headers=headers)
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "full")
        assert [len(node.asked) for node in w.nodes] == [1] * 7
        w.nodes[3].refusal = None
        for _ in range(4):
            answer = await w.complete(headers=headers)
            assert (answer.status_code, answer.headers["x-quire-node"]) == (200, "node-3")


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "mine"}])
async def test_a_request_that_has_lost_a_node_leaves_a_full_one_too(
    headers: dict[str, str],
) -> None:
    async with world(3) as w:
        await w.nodes[0].peer.die()
        w.nodes[1].refusal = refused(503, "capacity", "full")
        for stream in (True, False, True, False, True, False):
            answer = await w.complete(stream=stream, headers=headers)
            assert text_of(answer) == continuation("Hi", 4)


async def test_a_session_waits_at_a_node_that_loads_its_engine_if_the_others_are_full() -> None:
    async with world(2) as w:
        w.nodes[0].lose_engine()
        await w.probe()
        w.nodes[1].refusal = refused(503, "capacity", "full")
        answer = asyncio.create_task(w.complete(headers={"x-session-id": "mine"}))
        waiting = asyncio.create_task(w.nodes[0].has_been_asked.wait())
        await asyncio.wait({answer, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not answer.done(), (await answer).text
        w.nodes[0].load_engine()
        assert (await answer).headers["x-quire-node"] == "node-0"


async def test_a_request_whose_calls_are_refused_goes_whole_to_who_takes_it() -> None:
    for call in ("remote_send", "/tokenize"):
        async with world(3, "disaggregated") as w:
            if call == "remote_send":
                w.nodes[0].call_refusals[call] = refused(503, "draining", "it ends")
                answer = await w.complete()
            else:
                w.nodes[0].refusal = refused(503, "draining", "it ends")
                messages = [{"role": "user", "content": "Hi"}]
                answer = await w.http.post("/v1/chat/completions", json={"messages": messages})
            assert answer.status_code == 200, (call, answer.text)
            assert answer.headers["x-quire-node"] != "node-0"


async def test_a_client_error_is_not_tried_elsewhere() -> None:
    async with world(2) as w:
        w.nodes[0].refusal = w.nodes[1].refusal = refused(400, "invalid_argument", "no")
        assert (await w.complete()).status_code == 400
        assert sum(len(node.asked) for node in w.nodes) == 1


async def test_a_node_dies_by_two_probes_and_lives_again_by_two() -> None:
    async with world(2) as w:
        liveness = w.router.nodes[0].liveness
        w.nodes[0].health_status = 503
        await w.probe()
        assert liveness.state == "ready"
        await w.probe()
        assert liveness.state == "dead"
        assert await in_metrics(w, "alive", "ready") == [("alive", 0, 1), ("ready", 0, 1)]
        w.nodes[0].health_status = 200
        await w.probe()
        assert liveness.state == "dead"
        await w.probe()
        assert liveness.state == "ready"
        assert await in_metrics(w, "alive", "ready") == [("alive", 1, 1), ("ready", 1, 1)]


async def in_metrics(w: World, *names: str) -> list[tuple[str, float, float]]:
    """The values of both nodes' series ``quire_router_node_*`` in ``/metrics``."""
    text = (await w.http.get("/metrics")).text
    found = {
        (sample.name, sample.labels.get("node")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return [
        (name, *(found[f"quire_router_node_{name}", node] for node in ("node-0", "node-1")))
        for name in names
    ]


async def test_a_node_that_has_never_answered_is_not_dead() -> None:
    async with world(2) as w:
        node, watch = w.router.nodes[0], w.router.fleet.watches[0]
        node.liveness.__init__(node.liveness._hysteresis)  # type: ignore[misc]
        w.nodes[0].health_status = 503
        for _ in range(4):
            await watch.probe()
        assert node.liveness.state == "not reached yet"
        shown = (await w.http.get("/router/engines", headers=ADMIN_HEADERS)).json()["engines"]
        assert [one["state"] for one in shown] == ["not reached yet", "ready"]
        health = (await w.http.get("/health")).json()
        assert health["detail"] == ("1 of 2 nodes take work, 1 are alive, not reached yet: node-0")
        found = await w.http.get("/v1/responses/resp_1")
        assert found.status_code == 503
        w.nodes[0].health_status = 200
        await watch.probe()
        assert node.liveness.state == "ready", "its first answer"


async def test_what_is_asked_of_a_node_that_is_not_reached_yet_says_so() -> None:
    liveness = Liveness()
    assert liveness.failed("connection refused")
    assert (liveness.state, liveness.is_gone) == ("not reached yet", True)
    assert liveness.absence == "is not reached yet: connection refused"
    liveness.answered(is_ready=True)
    for _ in range(3):
        liveness.failed("connection refused")
    assert (liveness.state, liveness.is_gone) == ("dead", True)
    assert liveness.absence == "is lost: connection refused"


async def test_a_node_whose_engine_of_one_model_is_lost_serves_its_other_models() -> None:
    async with world(2) as w:
        lost, other = w.router.nodes
        lost.figures = other.figures = replace(lost.figures, models=("mini", "tiny"))
        w.nodes[0].models = w.nodes[1].models = ["mini", "tiny"]
        w.nodes[0].health_status = 503
        w.nodes[0].health = {
            "status": "unhealthy",
            "detail": "engine tiny is failed: no memory",
            "models": {"mini": True, "tiny": False},
        }
        await w.probe(3)
        assert lost.liveness.state == "ready"
        shown = (await w.http.get("/router/engines", headers=ADMIN_HEADERS)).json()["engines"]
        assert [one["unready_models"] for one in shown] == [["tiny"], []]
        assert await in_metrics(w, "unready_models") == [("unready_models", 1, 0)]

        async def answered_by(model: str) -> set[str]:
            answers = [await w.complete(model=model) for _ in range(4)]
            return {answer.headers["x-quire-node"] for answer in answers}

        assert await answered_by("mini") == {"node-0", "node-1"}
        assert await answered_by("tiny") == {"node-1"}
        unnamed = [await w.http.post("/v1/completions", json={"prompt": "Hi"}) for _ in range(4)]
        assert {one.headers["x-quire-node"] for one in unnamed} == {"node-1"}, "any model"
        w.nodes[1].health = {"status": "draining", "models": {"mini": True, "tiny": True}}
        await w.probe()
        assert await answered_by("mini") == {"node-0"}
        refused = await w.complete(model="tiny")
        assert refused.status_code == 503
        assert "node-0 not ready for tiny, node-1 busy" in refused.json()["error"]["message"]
        w.nodes[0].health, w.nodes[0].health_status = (
            {"status": "ok", "models": {"tiny": True}},
            200,
        )
        await w.probe()
        assert await answered_by("tiny") == {"node-0"}


async def test_a_node_that_can_serve_none_of_its_models_is_lost() -> None:
    async with world(2) as w:
        w.nodes[0].health_status = 503
        w.nodes[0].health = {"status": "unhealthy", "detail": "", "models": {"mini": False}}
        await w.probe(2)
        assert w.router.nodes[0].liveness.state == "dead"


async def test_a_draining_node_gets_no_new_work() -> None:
    async with world(2) as w:
        w.nodes[0].health = {"status": "draining"}
        await w.probe()
        assert await in_metrics(w, "alive", "ready") == [("alive", 1, 1), ("ready", 0, 1)]
        for _ in range(3):
            assert (await w.complete()).headers["x-quire-node"] == "node-1"


async def test_the_requests_of_a_silent_node_end_when_it_is_found_dead() -> None:
    async with world(2, cluster_key=None) as w:  # without feeds, which would be busy too
        node, other = w.router.nodes
        w.nodes[0].silent.clear()
        w.nodes[1].silent.clear()
        tasks = [asyncio.create_task(w.complete(stream=True)) for _ in range(4)]
        await until(lambda: node.pool.num_busy + other.pool.num_busy == 4)
        w.nodes[1].silent.set()
        for watch in w.router.fleet.watches[:1]:
            watch._times = type(watch._times)(timeout_s=0.0)  # its probes are not answered
            await watch.probe()
            await watch.probe()
        answers = await asyncio.gather(*tasks)
        assert {text_of(answer) for answer in answers} == {continuation("Hi", 4)}
        w.nodes[0].silent.set()


async def _streams_on(w: World, fail: Callable[[], Awaitable[None]]) -> bool:
    """Whether a stream of node 0 goes on when ``fail`` is called after its first token."""
    w.nodes[0].tokens = asyncio.Semaphore(1)
    body = {"prompt": "Hi", "max_tokens": 3, "stream": True}
    async with w.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await fail()
        w.nodes[0].tokens.release()
        w.nodes[0].tokens.release()
        rest = [line async for line in lines if line]
    return not any("error" in line for line in rest)


async def test_a_node_that_says_it_has_failed_goes_on_with_its_streams() -> None:
    async with world(1) as w:

        async def fail() -> None:
            w.nodes[0].health_status = 503
            await w.probe(3)

        assert await _streams_on(w, fail)
        assert w.router.nodes[0].liveness.state == "dead"


@pytest.mark.parametrize("is_sending", [True, False])
async def test_a_node_that_answers_no_probe_is_cut_off_if_it_sends_nothing_either(
    is_sending: bool,
) -> None:
    async with world(1) as w:
        (watch,) = w.router.fleet.watches

        async def fail() -> None:
            watch._times = WatchTimes(timeout_s=0.0)
            await watch.probe()
            (connection,) = w.router.nodes[0].pool._busy
            if is_sending:
                connection.active_s = math.inf  # it sends while the next probe waits
            await watch.probe()

        assert await _streams_on(w, fail) == is_sending


async def test_no_node_at_all_is_a_503_that_names_them() -> None:
    async with world(1) as w:
        await w.nodes[0].peer.die()
        await w.probe(2)
        answer = await w.complete()
        assert answer.status_code == 503
        assert "node-0 dead" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"]
        assert (await w.http.get("/ready")).status_code == 503
        assert (await w.http.get("/health")).status_code == 200


async def test_an_answer_in_json_that_breaks_after_its_start_cuts_the_connection() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"half'
        raise Cut

    async with world(1) as w:
        w.nodes[0].refusal = Said(pieces=pieces())
        with pytest.raises(httpx.RemoteProtocolError):
            await w.complete()


async def test_a_connection_that_the_node_closed_meanwhile_is_no_error() -> None:
    async with world(1) as w:
        await w.complete()
        for connection in list(w.nodes[0].peer._open):
            connection.transport.close()
        assert (await w.complete()).status_code == 200


async def test_a_launch_reaches_one_node_once() -> None:
    async with world(2) as w:
        w.nodes[0].cut_after = w.nodes[1].cut_after = 0
        for node in w.nodes:
            await node.peer.die()
        answer = await w.http.post("/v1/programs", json={"program": "x"})
        assert answer.status_code == 503


@pytest.mark.parametrize("listed", [{"data": [None]}, {"data": 5}, {"data": [{"id": 7}]}])
async def test_a_node_that_lists_no_models_has_failed_its_probe(listed: dict[str, Any]) -> None:
    """And is probed again: a watch that ends would leave it in its last state for ever."""

    async def answer(asked: Asked) -> Said:
        return said({"status": "ok"} if asked.path == "/health" else listed)

    async with HttpPeer(answer) as peer:
        node = RoutedNode(read_address(peer.url))
        await NodeWatch(node, WatchTimes(timeout_s=3600.0)).probe()
        assert node.liveness.state == "not reached yet"
        node.pool.close()
