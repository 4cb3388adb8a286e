"""A node that is drained gives its running answers away: their pages go ahead, the rest follows."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from http_peer import refused
from router_world import ADMIN_HEADERS, World, num_told, text_of, until, world
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
    await until(lambda: all(num_told(one) == 5 for one in running(w)))
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


async def shown(w: World) -> dict[str, float]:
    """The router's series of answers that change their node, without the common prefix."""
    text = (await w.http.get("/metrics")).text
    lines = [line.rpartition(" ") for line in text.splitlines() if "router_answer" in line]
    return {
        name.removeprefix("quire_router_"): float(value)
        for name, _, value in lines
        if not name.startswith("#") and "_created" not in name and "bucket" not in name
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_moves_are_counted_with_their_pauses(stream: bool) -> None:
    async with world(2, resumes=True) as w:
        assert (await shown(w))["answer_moves_begun_total"] == 0
        w.nodes[0].tokens = w.nodes[0].whole_tokens = asyncio.Semaphore(5)
        path, body = "/v1/chat/completions", {"max_tokens": NUM_TOKENS, "stream": stream}
        body["messages"] = [{"role": "user", "content": PROMPT}]
        task = asyncio.create_task(w.http.post(path, json=body))
        await until(lambda: any(num_told(one) == 5 for one in running(w)))
        w.nodes[1].tokens = w.nodes[1].whole_tokens = asyncio.Semaphore(1)
        assert (await drain(w))["num_moved"] == 1
        await until(lambda: any(num_told(one) == 6 for one in running(w)))
        found = await shown(w)
        assert found["answer_moves_begun_total"] == 1
        assert found['answers_continued_total{cause="move",outcome="done"}'] == 1
        assert found['answer_pause_seconds_count{cause="move"}'] == 1
        for _ in range(NUM_TOKENS):
            w.nodes[1].tokens.release()
        assert (await task).status_code == 200
        assert await shown(w) == found


async def test_answers_that_stay_fail_or_lose_their_client_are_told_apart() -> None:
    async with world(2, resumes=True) as w:
        body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS}
        task = await begun(w, "/v1/completions", body)
        w.nodes[1].call_cuts = {"prep_recv"}
        assert (await drain(w))["num_moved"] == 0
        found = await shown(w)
        assert found.pop("answer_moves_begun_total") == 1
        assert found == {'answers_continued_total{cause="move",outcome="stayed"}': 1}
        for _ in range(NUM_TOKENS):
            w.nodes[0].tokens.release()
        await task
    async with world(2, resumes=True) as w:
        task = await begun(w, "/v1/completions", body)
        w.nodes[1].call_gates["start_generate"] = asyncio.Event()
        await w.nodes[0].peer.die()
        await until(lambda: any(call == "start_generate" for call, _ in w.nodes[1].calls))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        aborted = w.router.metrics._continued.labels("loss", "aborted")
        await until(lambda: aborted._value.get() == 1)
    async with world(1, resumes=True) as w:
        task = await begun(w, "/v1/completions", body)
        await w.nodes[0].peer.die()
        assert "engine_lost" in await task
        found = await shown(w)
        assert found['answers_continued_total{cause="loss",outcome="failed"}'] == 1
        assert not any("pause" in name for name in found)


async def test_a_session_is_no_program_that_stays() -> None:
    record = {"object": "program", "state": "running", "parent": None}
    async with world(2, resumes=True) as w:
        w.nodes[0].programs = [
            {**record, "id": "prog-1", "form": "session"},
            {**record, "id": "prog-2", "form": "inferlet"},
        ]
        assert list((await drain(w))["programs_that_stay"]) == ["prog-2"]  # type: ignore[call-overload]


async def test_what_comes_while_pages_move_is_sent_too() -> None:
    async with world(2, resumes=True) as w:
        task = await begun(w, "/v1/completions", {"prompt": PROMPT, "max_tokens": 40})
        first, second = w.nodes
        gate = first.call_gates["remote_send"] = asyncio.Event()
        draining = asyncio.create_task(drain(w))
        await until(lambda: bool(first.calls))
        assert first.tokens is not None
        for _ in range(20):
            first.tokens.release()
        await until(lambda: all(num_told(one) == 25 for one in running(w)))
        gate.set()
        assert (await draining)["num_moved"] == 1
        lines = [line for line in (await task).splitlines() if line.startswith("data: {")]
        assert len(lines) == 40
        sent = [body for call, body in first.calls if call == "remote_send"]
        whole = PROMPT + continuation(PROMPT, 25)
        assert [body["end"] for body in sent] == [len(PROMPT) + 4, len(whole) - 1]
        assert [body["begin"] for body in sent] == [0, len(PROMPT) + 4]
        assert whole[:-1] in second.cached


STRATEGY = """
class Moving:
    last = None

    async def __call__(self, request, engines):
        here, *others = sorted(engines, key=lambda engine: engine.name)
        if request.prompt != "Move":
            self.last = await here.send(request)
            return self.last
        has_moved = await here.move(self.last, to=others[0])
        return await (others[0] if has_moved else here).send(request)
"""


async def test_a_strategy_moves_a_running_answer() -> None:
    async with world(2, resumes=True) as w:
        assert (await w.put(name="Moving", source=STRATEGY)).status_code == 200
        task = await begun(w, "/v1/completions", {"prompt": PROMPT, "max_tokens": NUM_TOKENS})
        asked = [await w.complete("Move") for _ in range(2)]
        assert [one.headers["x-quire-node"] for one in asked] == ["node-1", "node-0"]
        lines = [line for line in (await task).splitlines() if line.startswith("data: {")]
        assert len(lines) == NUM_TOKENS
        first, second = w.nodes
        assert [call for call, _ in first.calls] == ["remote_send"]
        calls = [call for call, _ in second.calls if call != "leases"]
        assert calls == ["prep_recv", "start_generate"]
        await until(lambda: not any(node.leases for node in w.nodes))


async def test_an_answer_moves_as_often_as_it_is_asked_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "quire.cluster.passing.outliving")
    async with world(2, resumes=True) as w:
        engines = sorted(w.router.fleet.engines, key=lambda engine: engine.name)
        w.nodes[0].tokens = asyncio.Semaphore(1)
        task = asyncio.create_task(w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS))
        for turn in range(NUM_TOKENS - 1):
            here, there = turn % 2, 1 - turn % 2
            await until(lambda turn=turn: any(num_told(a) > turn for a in running(w)))
            (answer,) = running(w)
            w.nodes[there].tokens = asyncio.Semaphore(1)
            assert await engines[here].move(answer, to=engines[there])
        assert text_of(await task) == continuation(PROMPT, NUM_TOKENS)
    said = [(one.levelname, one.getMessage()) for one in caplog.records if "goes on" in one.msg]
    assert [level for level, _ in said] == ["INFO"] * (NUM_TOKENS - 1), said
    assert said[0][1].endswith("goes on at node-1 behind 1 tokens: it was moved there")


@pytest.mark.parametrize("resumes", [True, False])
async def test_what_cannot_move_stays(resumes: bool) -> None:
    async with world(2, resumes=resumes) as w:
        engines = {engine.name: engine for engine in w.router.fleet.engines}
        here, there = engines["node-0"], engines["node-1"]
        task = asyncio.create_task(w.complete(PROMPT, stream=True, max_tokens=NUM_TOKENS))
        w.nodes[0].tokens = asyncio.Semaphore(0)
        await until(lambda: bool(w.nodes[0].num_streams))
        for answer in running(w):
            assert not await there.move(answer, to=here), "it is at the other one"
            assert not await here.move(answer, to=here)
            there.node.is_draining = True
            assert not await here.move(answer, to=there)
        for _ in range(NUM_TOKENS):
            w.nodes[0].tokens.release()
        assert text_of(await task) == continuation(PROMPT, NUM_TOKENS)
        assert not w.nodes[0].calls


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
        wrong = await w.http.get(path, headers=ADMIN_HEADERS)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST, DELETE")
        other = await w.http.post("/router/nodes/other/drain", headers=ADMIN_HEADERS)
        assert other.status_code == 404
