"""While a client runs a tool, its program's pages go to where it goes on soonest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from http_peer import said
from real_nodes import MODEL, RealNode, real_nodes
from router_world import until, world

from quire.cluster.engines.interfaces import PrepRecvResult, RemoteSendResult
from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.engines.pages_ahead import PromptPrefix, send_ahead
from quire.cluster.engines.trial import TrialEngine
from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.passing.opened import OpenedAnswer
from quire.cluster.passing.tool_calls import ToolCalls
from quire.cluster.requests.request import Request
from quire.cluster.routing.strategy import StrategySource, load
from quire.cluster.strategies import Quire
from quire.core.errors import InvalidArgument

CHAT = "/v1/chat/completions"
MARKS = {
    CHAT: b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n',
    "/v1/messages": b'event: message_delta\ndata: {"delta":{"stop_reason":"tool_use"}}\n\n',
    "/v1/responses": b'data: {"response":{"output":[{"type":"function_call"}]}}\n\n',
}


class Pieces:
    """An answer of these pieces; the first ``num_passed`` go to a sink, if there is one."""

    engine = "a"
    head = AnswerHead(200, [])

    def __init__(self, pieces: Sequence[bytes], num_passed: int = 0) -> None:
        self.pieces = list(pieces)
        self.num_passed = num_passed
        self.sink: Sink | None = None

    async def read(self) -> bytes:
        while self.sink is not None and self.num_passed and self.pieces:
            self.num_passed -= 1
            if not self.sink(self.pieces[0]):
                break
            self.pieces.pop(0)
        return self.pieces.pop(0) if self.pieces else b""

    def pass_to(self, sink: Sink) -> None:
        self.sink = sink

    def close(self) -> None: ...


async def told(path: str, pieces: Sequence[bytes], *, num_passed: int = 0) -> list[str]:
    """The requests of which a strategy is told; the answer is read to its end."""
    found: list[str] = []

    async def idle(request: Request, engines: Sequence[Any]) -> None:
        found.append(request.path)

    request = Request("POST", path, [], b"{}", "r")
    first, *rest = pieces
    opened = OpenedAnswer(Pieces(rest, num_passed), first, is_whole=not rest)
    watched = ToolCalls().watched(opened, request, idle, [])
    got = [watched.first]
    watched.answer.pass_to(lambda piece: bool(got.append(piece)) or True)
    if rest:
        assert not found
        while piece := await watched.answer.read():
            got.append(piece)
    assert b"".join(got) == b"".join(pieces)
    await asyncio.sleep(0)
    return found


@pytest.mark.parametrize("path", MARKS)
@pytest.mark.parametrize("num_passed", [0, 99])
async def test_a_call_is_seen_wherever_pieces_end(path: str, num_passed: int) -> None:
    whole = b"data: {}\n\n" + MARKS[path] + b"data: [DONE]\n\n"
    for cut in range(1, len(whole), 7):
        pieces = [whole[:cut], whole[cut : cut + 5], whole[cut + 5 :]]
        assert await told(path, [*filter(None, pieces)], num_passed=num_passed) == [path]
    assert await told(path, [whole]) == [path]


async def test_others_are_told_to_nobody() -> None:
    text = msgspec.json.encode({"content": 'say "finish_reason":"tool_calls"'})
    assert await told(CHAT, [b"data: " + text, b'{"finish_reason":"stop"}']) == []
    assert await told("/v1/completions", [b"data: ", MARKS[CHAT]]) == []


STRATEGY = """
class Tells:
    async def __call__(self, request, engines):
        return await engines[0].send(request)

    async def idle(self, request, engines):
        await engines[1].prep_recv(request, 2, prompt="tool")
        raise ValueError("which harms nobody")
"""


async def test_a_strategy_is_told_when_the_answer_is_with_the_client() -> None:
    body = {"choices": [{"index": 0, "message": {}, "finish_reason": "tool_calls"}]}
    source = StrategySource("Tells", STRATEGY)
    async with world(strategy=source) as w:
        w.nodes[0].refusal = replace(said(body), body=msgspec.json.encode(body))
        asked = {"messages": [{"role": "user", "content": "Hi"}]}
        answer = await w.http.post(CHAT, json=asked)
        assert answer.json() == body
        await w.nodes[1].has_been_called.wait()
        assert [call for call, _ in w.nodes[1].calls][:1] == ["prep_recv"]
        await until(lambda: not w.nodes[1].leases)  # and what it has begun is ended


async def test_idle_has_to_be_a_coroutine() -> None:
    text = STRATEGY.replace("async def idle", "def idle").replace("await engines[1]", "engines[1]")
    with pytest.raises(InvalidArgument, match="'idle' must be"):
        await load(StrategySource("Tells", text))


class Settling(TrialEngine):
    """Notes what becomes of a lease."""

    def __init__(self, name: str, notes: list[str]) -> None:
        super().__init__(name)
        self.notes = notes

    async def prep_recv(self, request: Request, end: int, **_: object) -> PrepRecvResult:
        request.work.leases["lease"] = lambda _: self.notes.append("given up")
        return PrepRecvResult("lease", 0, num_tokens=end, end=end)

    async def remote_send(
        self, request: Request, received: PrepRecvResult, *, begin: int, end: int, **_: object
    ) -> RemoteSendResult:
        self.notes.append("sent")
        return RemoteSendResult(end - begin)

    async def settle(self, request: Request, received: PrepRecvResult) -> None:
        self.notes.append("settled")
        del request.work.leases[received.kv_addr_info]


async def test_a_lease_is_not_given_up_before_its_receiver_knows_that_all_is_there() -> None:
    """It may hear of that later than the sender does; what it then holds would be dropped."""
    notes: list[str] = []
    source, target = Settling("a", notes), Settling("b", notes)
    assert await send_ahead([PromptPrefix(MODEL, [1] * 32)], source, target, 30.0) == 32
    assert notes == ["sent", "settled"]


NUM_FULL = 320
"""Of its prompt's tokens, those that fill pages."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(2) as nodes:
        yield nodes


async def test_the_pages_are_where_it_goes_on(nodes: list[RealNode]) -> None:
    prompt = [(7 * i) % 200 + 20 for i in range(333)]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
    async with world(nodes=nodes, strategy="quire") as w:
        source, target = w.router.fleet.engines
        headers = [(b"content-type", b"application/json")]
        request = Request("POST", "/v1/completions", headers, msgspec.json.encode(body), "r")
        answer = await source.send(request)
        while await answer.read():
            pass
        answer.close()

        async def at(engine: NodeEngine) -> int:
            found = await engine.locate(request)
            return 0 if found is None else found.num_matched.get(engine.name, 0)

        async with asyncio.timeout(60):
            # nodes tell ten times a second, their indexes apart from their figures
            while await at(source) < NUM_FULL or not source.token_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for _ in range(50):
            source.node.began()
        strategy = Quire(call_s=1e-6, bytes_per_s=1e15)
        await strategy.idle(request, [source, target])
        async with asyncio.timeout(60):
            while await at(target) < NUM_FULL:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for _ in range(50):
            source.node.ended()
