"""Nodes that answer with text that is not UTF-8, or with brackets without end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from http_peer import Asked, HttpPeer, Said
from router_world import world

from quire.cluster.engines.node_engine import ClusterKey, NodeEngine
from quire.cluster.nodes import index_feed
from quire.cluster.nodes.addresses import read_address
from quire.cluster.nodes.index_feed import IndexFeed
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.nodes.page_tree import PageTree
from quire.cluster.nodes.record_reader import message_of
from quire.cluster.nodes.watch import NodeWatch, WatchTimes
from quire.cluster.passing.program_moves import ProgramMoves, ProgramsLeft
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.requests.locating import Locator
from quire.core.errors import EngineFault
from quire.server.answers.resuming.told_tokens import COMMENT, TELLS_HEADER, ToldChunk

NO_TEXT = b'{"data": ["\xff"], "error": {"message": "\xff"}}'
NO_END = b'{"data": ' + b"[" * 200_000
bodies = pytest.mark.parametrize("body", [NO_TEXT, NO_END])


@bodies
async def test_a_watch_goes_on(body: bytes) -> None:
    async def answer(asked: Asked) -> Said:
        return Said(200, body)

    async with HttpPeer(answer) as peer:
        node = RoutedNode(read_address(peer.url))
        await NodeWatch(node, WatchTimes(timeout_s=3600.0)).probe()
        assert node.liveness.state == "busy", "it says nothing of being ready"
        node.pool.close()


@bodies
async def test_an_index_is_asked_for_again(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_feed, "RETRY_S", 0.0)
    again = asyncio.Event()
    asked: list[Asked] = []

    async def answer(one: Asked) -> Said:
        asked.append(one)
        if len(asked) > 1:
            again.set()
        return Said(200, b"data: " + body + b"\n\n", kind="text/event-stream")

    async with HttpPeer(answer) as peer:
        node = RoutedNode(read_address(peer.url))
        feed = asyncio.create_task(IndexFeed(node, PageTree(), {}).run())
        waiting = asyncio.create_task(again.wait())
        await asyncio.wait({feed, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not feed.done()
        feed.cancel()
        waiting.cancel()
        await asyncio.gather(feed, waiting, return_exceptions=True)
        node.pool.close()


async def test_records_are_asked_for_again() -> None:
    said: list[str] = []

    class UnreadableRecords:
        complaints = SimpleNamespace(tell=said.append)

        async def read(self) -> None:
            b"\xff".decode()

    reader: Any = UnreadableRecords()
    rescue = ProgramRescue(lambda: [], ClusterKey("key"), Locator(lambda: []))
    assert await rescue._read(reader, lambda: None) > 0
    assert "can't decode byte 0xff" in said[0]


@bodies
def test_a_refusal_is_told_as_far_as_it_can_be_read(body: bytes) -> None:
    node = RoutedNode(read_address("http://127.0.0.1:1"))
    engine = NodeEngine(node, ClusterKey("key"), lambda: None, PageTree(), nowhere)
    refusal = engine._refusal("/v1/microserving/pin", 500, body)
    assert refusal.message.startswith("/v1/microserving/pin at 127.0.0.1:1 (500): {")
    assert message_of(body).startswith("{")


@bodies
async def test_a_background_response_that_cannot_be_read_is_passed_on(body: bytes) -> None:
    streamed = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    async with world(1) as w:
        for said in (Said(200, body), Said(200, streamed, kind="text/event-stream")):
            w.nodes[0].refusal = said
            asked = {"input": "Hi", "background": True, "stream": said.body is streamed}
            answer = await w.http.post("/v1/responses", json=asked)
            assert (answer.status_code, answer.content) == (200, said.body)
        assert not w.router.background._begun
        w.nodes[0].refusal = Said(200, b'{"id": "resp_1", "status": "queued"}')
        await w.http.post("/v1/responses", json={"input": "Hi", "background": True})
        w.nodes[0].refusal = Said(200, body)
        assert (await w.http.get("/v1/responses/resp_1")).content == body
        assert list(w.router.background._begun) == ["resp_1"], "its end is not known"


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def told(*pieces: bytes, gate: asyncio.Event | None = None) -> Said:
    """A stream of which a router keeps what it tells. ``gate``: what all but its first piece wait
    for; the stream then stays open."""

    async def sent() -> AsyncIterator[bytes]:
        for number, piece in enumerate(pieces):
            if number and gate is not None:
                await gate.wait()
            yield piece
        if gate is not None:
            await asyncio.Event().wait()

    return Said(pieces=sent(), kind="text/event-stream", headers={TELLS_HEADER: "1"})


@bodies
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_cannot_be_read_is_asked_for_elsewhere(
    body: bytes, stream: bool
) -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].refusal = told(COMMENT + body + b"\n\n", b"data: never\n\n")
        for _ in range(2):
            answer = await w.http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
            assert (answer.status_code, answer.headers["x-quire-node"]) == (200, "node-1")
            assert "never" not in answer.text
        assert w.nodes[0].asked


@bodies
async def test_a_stream_that_cannot_be_read_any_more_ends_with_an_error(body: bytes) -> None:
    chunk = COMMENT + msgspec.json.encode(ToldChunk("key", 1, 2, [7], (1,))) + b"\n\n"
    broken, gate = COMMENT + body + b"\n\ndata: never\n\n", asyncio.Event()
    async with world(1, resumes=True) as w:
        w.nodes[0].refusal = told(b'data: {"text": "first"}\n\n' + chunk, broken, gate=gate)
        asked = {**CHAT, "stream": True}
        async with w.http.stream("POST", "/v1/chat/completions", json=asked) as answer:
            lines = answer.aiter_lines()
            assert "first" in await anext(lines)
            gate.set()
            rest = [line async for line in lines if line]
        assert "node node-0 has sent an event that cannot be read" in rest[0]
        assert rest[1:] == ["data: [DONE]"]


@bodies
async def test_programs_that_cannot_be_read_stay(body: bytes) -> None:
    listed = b'{"data": [{"id": "p", "state": "running", "object": "program", "parent": ""}]}'
    texts, records = Said(200, body), Said(409, body)

    async def answer(asked: Asked) -> Said:
        if asked.path == "/v1/programs":
            return Said(200, listed if is_listed else body)
        return texts if asked.path.endswith("/texts") else records

    async with world(2) as w, HttpPeer(answer) as peer:
        node = RoutedNode(read_address(peer.url))
        node.liveness.answered(is_ready=True)
        engine = NodeEngine(node, ClusterKey("key"), lambda: None, PageTree(), nowhere)
        moves = ProgramMoves(w.router.fleet, ClusterKey("key"), Locator(lambda: []))
        is_listed = False
        assert await moves.empty(engine) == ProgramsLeft()
        is_listed = True
        left = await moves.empty(engine)
        assert left.stay.keys() == {"p"}
        assert left.stay["p"].startswith("{"), "as far as it can be read"
        node.pool.close()


async def nowhere(*_: object) -> bool:
    return False


@bodies
async def test_a_call_and_a_list_say_which_node_answers_so(body: bytes) -> None:
    async with world(1) as w:
        w.nodes[0].refusal = Said(200, body)
        answer = await w.http.get("/v1/programs")
        assert answer.status_code == 500
        said = answer.json()["error"]["message"]
        assert said.startswith("/v1/programs at node-0 answers with what it should not"), said
        (engine,) = w.router.fleet.engines
        request: Any = SimpleNamespace(model=None, headers=[], work=SimpleNamespace())
        with pytest.raises(EngineFault, match="/tokenize at node-0 answers with what"):
            await engine._call(request, "/tokenize", {}, [], dict)
