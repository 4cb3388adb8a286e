"""A node that is drained gives its running answers away: their pages go ahead, the rest follows."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from http_peer import refused
from router_world import ADMIN_HEADERS, World, text_of, until, world
from stand_in_node import continuation

PROMPT = "Once upon a time"
NUM_TOKENS = 12


async def drain(w: World, name: str = "node-0", method: str = "POST") -> dict[str, object]:
    answer = await w.http.request(method, f"/router/nodes/{name}/drain", headers=ADMIN_HEADERS)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=dict[str, object])


async def begun(w: World, path: str, body: dict[str, object]) -> asyncio.Task[str]:
    """A stream of which node-0 has told five tokens, and will tell no more."""
    w.nodes[0].tokens = asyncio.Semaphore(5)

    async def ask() -> str:
        return (await w.http.post(path, json={"stream": True, **body})).text

    task = asyncio.create_task(ask())
    await until(lambda: bool(w.nodes[0].num_streams) and w.nodes[0].tokens.locked())
    await until(lambda: all(len(one.generated or ()) == 5 for one in running(w)))
    return task


def running(w: World) -> list[Any]:
    return list(w.router.moves._running)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
async def test_a_running_answer_moves_with_what_is_computed(path: str) -> None:
    prompt: dict[str, object] = {"prompt": PROMPT}
    if path != "/v1/completions":
        prompt = {"messages": [{"role": "user", "content": PROMPT}]}
    async with world(2, resumes=True) as w:
        task = await begun(w, path, {**prompt, "max_tokens": NUM_TOKENS})
        assert (await drain(w))["num_moved"] == 1
        told = await task
        rendered = PROMPT if "prompt" in prompt else f"<user>{PROMPT}<assistant>"
        tokens = [
            event.get("text") or event["choices"][0]["text"]
            for line in told.splitlines()
            if line.startswith("data: {")
            and ("text" in (event := msgspec.json.decode(line[6:])) or "choices" in event)
        ]
        assert "".join(tokens) == continuation(rendered, NUM_TOKENS)
        first, second = w.nodes
        (sent,) = (body for call, body in first.calls if call == "remote_send")
        assert "".join(map(chr, sent["prompt"])) == rendered + continuation(rendered, 5)
        assert second.cached[0] == rendered + continuation(rendered, 5)[:-1]
        await until(lambda: not any(node.leases for node in w.nodes))
        await until(lambda: not any(node.num_outstanding for node in w.router.nodes))


async def test_a_drained_node_gets_no_work_until_it_is_back() -> None:
    async with world(2) as w:
        described = await drain(w)
        assert (described["draining"], described["state"]) == (True, "ready")
        for _ in range(4):
            assert (await w.complete()).headers["x-quire-node"] == "node-1"
        assert (await drain(w, method="DELETE"))["draining"] is False
        found = {(await w.complete()).headers["x-quire-node"] for _ in range(4)}
        assert found == {"node-0", "node-1"}
        await drain(w)
        await drain(w, "node-1")
        assert (await w.complete()).status_code == 503
        assert (await w.http.get("/ready")).status_code == 503


async def test_what_cannot_be_sent_ahead_moves_all_the_same() -> None:
    async with world(2, resumes=True) as w:
        task = await begun(w, "/v1/completions", {"prompt": PROMPT, "max_tokens": NUM_TOKENS})
        w.nodes[1].call_refusals["prep_recv"] = refused(503, "capacity", "full")
        assert (await drain(w))["num_moved"] == 1
        told = [line for line in (await task).splitlines() if line.startswith("data: {")]
        assert len(told) == NUM_TOKENS


async def test_an_answer_stays_where_the_other_node_is_lost_meanwhile() -> None:
    async with world(2, resumes=True) as w:
        task = await begun(w, "/v1/completions", {"prompt": PROMPT, "max_tokens": NUM_TOKENS})
        w.nodes[1].call_cuts = {"prep_recv"}
        assert (await drain(w))["num_moved"] == 0
        assert w.nodes[0].tokens is not None
        for _ in range(NUM_TOKENS):
            w.nodes[0].tokens.release()
        told = [line for line in (await task).splitlines() if line.startswith("data: {")]
        assert len(told) == NUM_TOKENS


async def test_without_another_node_or_resume_answers_stay() -> None:
    for num_nodes, resumes in ((1, True), (2, False)):
        async with world(num_nodes, resumes=resumes) as w:
            task = asyncio.create_task(w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS))
            w.nodes[0].tokens = asyncio.Semaphore(0)
            await until(lambda w=w: bool(w.nodes[0].num_streams))
            assert (await drain(w))["num_moved"] == 0
            for _ in range(NUM_TOKENS):
                w.nodes[0].tokens.release()
            assert text_of(await task) == continuation(PROMPT, NUM_TOKENS)


async def test_who_may_drain_what() -> None:
    async with world(1) as w:
        path = "/router/nodes/node-0/drain"
        assert (await w.http.post(path)).status_code == 401
        assert (await w.http.get(path, headers=ADMIN_HEADERS)).status_code == 405
        other = await w.http.post("/router/nodes/other/drain", headers=ADMIN_HEADERS)
        assert other.status_code == 404
