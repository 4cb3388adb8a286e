"""Restartable programs of a node that is lost go on at another one, and end with what they would
have said."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from httpx import AsyncClient
from linked_nodes import LinkedWorld, linked
from real_nodes import RealNode, real_nodes
from router_world import World, world
from stand_in_node import CLUSTER_KEY
from websockets.asyncio.client import connect

from quire.cluster.requests.places import program_lookups
from quire.programs.library import LIBRARY
from quire.programs.sdk import Context, inferlet, temperature

NUM_TURNS = 4


@inferlet("interview", restartable=True)
async def interview(api, heat):  # type: ignore[no-untyped-def]
    """Answers each message on the same pages."""
    sampler = temperature(float(heat))
    context = Context(api).fill("an interview: ")
    answers = []
    for _ in range(NUM_TURNS):
        context.fill(await api.receive())
        answers.append(await context.generate_until(max_tokens=5, sampler=sampler))
        await api.send(answers[-1])
    return answers


@inferlet("recites", restartable=True)
async def recites(api):  # type: ignore[no-untyped-def]
    """Sends each message back."""
    heard = []
    for _ in range(NUM_TURNS):
        heard.append(await api.receive())
        await api.send(heard[-1])
    return heard


@inferlet("answers", restartable=True)
async def answers(api):  # type: ignore[no-untyped-def]
    """Answers its parent on the same pages."""
    context = Context(api).fill("an answer: ")
    while (question := await api.receive()) != "thanks":
        context.fill(question)
        await api.send(await context.generate_until(max_tokens=5, sampler=temperature(1.0)))
    return "gladly"


@inferlet("passes", restartable=True)
async def passes(api):  # type: ignore[no-untyped-def]
    """Has its messages answered by a child."""
    child = await api.launch("answers", [])
    await api.send(child.id)
    said = []
    for _ in range(NUM_TURNS):
        await child.send(await api.receive())
        said.append(await child.receive())
        await api.send(said[-1])
    await child.send("thanks")
    return [*said, await child.join()]


@inferlet("bound", restartable=True)
async def bound(api):  # type: ignore[no-untyped-def]
    """Has a child that cannot go on elsewhere."""
    child = await api.launch("stays", [])
    await api.send(child.id)
    await api.receive()


@inferlet("stays")
async def stays(api):  # type: ignore[no-untyped-def]
    await api.send(await api.receive())
    await api.receive()


@inferlet("notes", restartable=True, topics=["news"])
async def notes(api):  # type: ignore[no-untyped-def]
    await api.broadcast("news", await api.receive())
    await api.send("told")
    await api.receive()


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("answers", "bound", "interview", "notes", "passes", "recites", "stays"):
        monkeypatch.setitem(LIBRARY._modules, name, __name__)


async def launched(w: World, name: str = "interview", **fields: Any) -> tuple[str, str]:
    """Its id, and the name of its node."""
    answer = await w.http.post("/v1/programs", json={"program": name, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], answer.headers["x-quire-node"]


async def say(w: World, program: str, text: str) -> None:
    body = {"signal": "message", "message": text}
    answer = await w.http.post(f"/v1/programs/{program}/signal", json=body)
    assert answer.status_code == 202, answer.text


async def frames(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def interviewed(c: LinkedWorld, heat: str, lost_in: tuple[int, ...]) -> list[str]:
    """What the program said; its node is lost in these turns."""
    w, said = c.w, list[str]()
    num_before = w.router.rescue.num_rescued
    program, _ = await launched(w, args=[heat])
    async with w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
        told = frames(answer.aiter_lines())
        for turn in range(NUM_TURNS):
            await say(w, program, f"question {turn}")
            frame = await anext(told)
            assert (frame["type"], frame["sequence"]) == ("message", turn + 1), frame
            said.append(frame["text"])
            if turn in lost_in:
                at = (await w.http.get(f"/v1/programs/{program}")).headers["x-quire-node"]
                await c.lose(at)
                found = await w.router.rescue.find(program_lookups(program), [])
                assert found is not None
                assert found.name != at
                await c.find_again(at)
        ended = await anext(told)
        shown = (await w.http.get("/metrics")).text
        num_rescued = w.router.rescue.num_rescued
        assert num_rescued >= num_before + len(lost_in)
        name = "quire_router_lost_nodes_programs_total"
        assert f'{name}{{outcome="rescued"}} {float(num_rescued)}' in shown
        assert 'quire_router_program_records{node="real-0"}' in shown
    assert (ended["type"], ended["program"]["result"]) == ("ended", said)
    await is_listed_once(w, program)
    return said


async def is_listed_once(w: World, program: str) -> None:
    """Check that the list has the program once. The node that was taken for lost may have it, too,
    until it knows that the program goes on elsewhere."""
    ids = [one["id"] for one in (await w.http.get("/v1/programs")).json()["data"]]
    assert ids.count(program) == 1


async def test_it_ends_with_the_same(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        expected = await interviewed(c, "0", ())
        assert await interviewed(c, "0", (1,)) == expected
        assert await interviewed(c, "0", (0, 2)) == expected


async def test_what_was_sampled_stays(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        await interviewed(c, "1", (1,))


async def test_what_cannot_go_on_is_lost_and_says_why(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        for name, why in (("stays", "restartable"), ("notes", "a topic of this node")):
            program, at = await launched(c.w, name)
            await say(c.w, program, "a word")
            async with c.w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
                told = frames(answer.aiter_lines())
                assert (await anext(told))["type"] == "message"
                await c.lose(at)
                left = [frame async for frame in told]
            assert [why in frame["error"]["message"] for frame in left] == [True], left
            found = await c.w.http.get(f"/v1/programs/{program}")
            assert found.status_code == 404
            assert why in found.json()["error"]["message"]
            await c.find_again(at)


async def test_its_children_go_on_with_it(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        w, said = c.w, list[str]()
        program, at = await launched(w, "passes")
        async with w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
            told = frames(answer.aiter_lines())
            child = (await anext(told))["text"]
            async with w.http.stream("GET", f"/v1/programs/{child}/events") as its_answer:
                of_child = frames(its_answer.aiter_lines())
                for turn in range(NUM_TURNS):
                    await say(w, program, f"question {turn}")
                    said.append((await anext(told))["text"])
                    assert (await anext(of_child))["text"] == said[-1]
                    if turn in (0, 2):
                        await c.lose(at)
                        found = await w.router.rescue.find(program_lookups(child), [])
                        assert found is not None
                        shown = (await w.http.get(f"/v1/programs/{child}")).json()
                        assert (shown["parent"], shown["state"]) == (program, "running")
                        await c.find_again(at)
                        assert found.name != at
                        at = found.name
                        await is_listed_once(w, child)
                ended = await anext(told)
        assert ended["program"]["result"] == [*said, "gladly"]
        await is_listed_once(w, program)


async def test_a_family_of_which_one_cannot_go_on_is_lost_and_says_why(
    nodes: list[RealNode],
) -> None:
    async with linked(nodes) as c:
        program, at = await launched(c.w, "bound")
        async with c.w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
            told = frames(answer.aiter_lines())
            child = (await anext(told))["text"]
            await c.lose(at)
            left = [frame async for frame in told]
        why = f"its child 'stays' ({child}) has to stay: it is not restartable"
        assert [why in frame["error"]["message"] for frame in left] == [True], left
        for one, which in ((program, program), (child, f"{child} was lost with its node")):
            found = await c.w.http.get(f"/v1/programs/{one}")
            assert found.status_code == 404
            assert why in found.json()["error"]["message"]
            assert which in found.json()["error"]["message"]
        await c.find_again(at)


async def test_a_launch_that_waits_is_answered_when_the_program_has_ended(
    nodes: list[RealNode],
) -> None:
    async with linked(nodes) as c:
        w = c.w
        body = {"program": "recites", "client_id": "the awaited one", "wait": True}
        launch = asyncio.create_task(w.http.post("/v1/programs", json=body))
        row: dict[str, Any] = {}
        while not row:
            listed = (await w.http.get("/v1/programs")).json()["data"]
            row = next((one for one in listed if one["client_id"] == "the awaited one"), {})
        for turn in range(NUM_TURNS):
            await say(w, row["id"], f"question {turn}")
            if turn == 1:
                await c.lose(row["node"])
                found = await w.router.rescue.find(program_lookups(row["id"]), [])
                assert found is not None
                assert found.name != row["node"]
                await c.find_again(row["node"])
        answer = await launch
        assert (answer.status_code, answer.headers["x-quire-node"]) == (201, found.name)
        assert answer.headers["content-type"] == "application/json"
        ended = answer.json()
        assert (ended["id"], ended["state"]) == (row["id"], "finished")
        assert ended["result"] == [f"question {turn}" for turn in range(NUM_TURNS)]


async def test_a_launch_that_waits_for_what_is_lost_says_why(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        body = {"program": "stays", "client_id": "the lost one", "wait": True}
        launch = asyncio.create_task(c.w.http.post("/v1/programs", json=body))
        row: dict[str, Any] = {}
        readers = c.w.router.rescue.readers
        # the router has heard why it stays
        while not any(row.get("id") in reader.kept for reader in readers):
            listed = (await c.w.http.get("/v1/programs")).json()["data"]
            row = next((one for one in listed if one["client_id"] == "the lost one"), {})
        await c.lose(row["node"])
        answer = await launch
        assert answer.status_code == 503
        assert "it is not restartable" in answer.json()["error"]["message"]
        await c.find_again(row["node"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"program": "none_such", "wait": true}', 404),
        (b'{"program": "recites", "wait": true, "stream": true}', 400),
        (b'{"program": "recites", "wait": true, "wait": true}', 400),
    ],
)
async def test_a_launch_that_waits_is_refused_as_by_its_node(
    nodes: list[RealNode], body: bytes, status: int
) -> None:
    headers = {"content-type": "application/json"}
    async with linked(nodes) as c:
        answer = await c.w.http.post("/v1/programs", content=body, headers=headers)
        direct = {**headers, "x-quire-node": "real-0"}
        expected = await c.w.http.post("/v1/programs", content=body, headers=direct)
    assert (answer.status_code, expected.status_code) == (status, status)
    assert answer.json()["error"]["message"] == expected.json()["error"]["message"]


async def test_one_router_at_a_time_keeps_them(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c, world(nodes=nodes, resumes=True) as other:
        program, at = await launched(c.w, args=["0"])
        await say(other, program, "question 0")
        await c.lose(at)  # for the first router, which rescues it
        found = await c.w.router.rescue.find(program_lookups(program), [])
        assert found is not None
        assert found.name != at
        for turn in range(1, NUM_TURNS):
            await say(c.w, program, f"question {turn}")
        async with c.w.http.stream("GET", f"/v1/programs/{program}/events") as answer:
            told = [frame async for frame in frames(answer.aiter_lines())]
        assert [one["type"] for one in told] == ["message"] * NUM_TURNS + ["ended"]
        await c.find_again(at)


async def test_that_another_router_keeps_them_is_no_news(
    nodes: list[RealNode], caplog: pytest.LogCaptureFixture
) -> None:
    """A router that does not keep a node's records asks every second, for as long as it runs."""
    caplog.set_level(logging.INFO, "quire.requests")
    path = f"{nodes[0].peer.url}/v1/microserving/records"
    key = {"x-quire-cluster-key": CLUSTER_KEY}

    async def status(reader: str, headers: dict[str, str] = key) -> int:
        body = {"reader": reader}
        async with AsyncClient(trust_env=False) as http:
            return (await http.post(path, json=body, headers=headers)).status_code

    while await status("first") != 200:  # noqa: ASYNC110 - a router of another test keeps them
        await asyncio.sleep(0.05)
    assert await status("second") == 409
    assert "microserving/records" not in caplog.text
    assert await status("third", {}) == 401
    assert "microserving/records" in caplog.text


async def test_an_attached_client_stays_attached(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        program, at = await launched(c.w, args=["0"])
        url = f"{c.w.url.replace('http', 'ws')}/v1/programs/{program}/attach"
        said = []
        async with connect(url, proxy=None) as socket:
            for turn in range(NUM_TURNS):
                await socket.send(json.dumps({"type": "message", "text": f"question {turn}"}))
                frame = json.loads(await socket.recv())
                assert (frame["type"], frame["sequence"]) == ("message", turn + 1), frame
                said.append(frame["text"])
                if turn in (0, 2):
                    await c.lose(at)
                    found = await c.w.router.rescue.find(program_lookups(program), [])
                    assert found is not None
                    await c.find_again(at)
                    at = found.name
            ended = json.loads(await socket.recv())
        assert (ended["type"], ended["program"]["result"]) == ("ended", said)


async def test_frames_that_were_under_way_arrive_once(nodes: list[RealNode]) -> None:
    async with linked(nodes) as c:
        program, at = await launched(c.w, "recites")
        url = f"{c.w.url.replace('http', 'ws')}/v1/programs/{program}/attach"
        async with connect(url, proxy=None) as socket:
            for turn in range(NUM_TURNS):
                if turn == NUM_TURNS // 2:
                    c.links[at].hold()  # what is sent now does not reach the node
                await socket.send(json.dumps({"type": "message", "text": f"question {turn}"}))
                if turn < NUM_TURNS // 2:
                    await socket.recv()
            await c.lose(at)
            told = [json.loads(frame) async for frame in socket]
        assert told[-1]["program"]["result"] == [f"question {turn}" for turn in range(NUM_TURNS)]
        assert [one["sequence"] for one in told[:-1]] == [3, 4]
        await c.find_again(at)
