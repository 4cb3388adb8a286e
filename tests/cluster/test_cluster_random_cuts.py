"""Answers of real nodes that break off at random bytes: texts and log probabilities are those of a
run that nothing has disturbed, streamed or not."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from real_nodes import MODEL, RealNode, real_nodes
from router_world import World, world

TEXT = "The harbour wakes before the town does, and nobody counts the boats. "
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}]}
SAMPLED = {"temperature": 0.9, "seed": 11, "max_tokens": 24, "ignore_eos": True}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "a completion": ("/v1/completions", {"prompt": TEXT, **SAMPLED}),
    "its log probabilities": ("/v1/completions", {"prompt": TEXT, "logprobs": 3, **SAMPLED}),
    "and those of its prompt": (
        "/v1/completions",
        {"prompt": TEXT, "logprobs": 2, "echo": True, "n": 2, **SAMPLED},
    ),
    "several prompts": (
        "/v1/completions",
        {"prompt": [TEXT, "A bell counts. "], **SAMPLED, "n": 2, "echo": True, "logprobs": 1},
    ),
    "a chat": ("/v1/chat/completions", {**CHAT, **SAMPLED, "n": 3}),
    "a chat's log probabilities": (
        "/v1/chat/completions",
        {**CHAT, **SAMPLED, "n": 2, "logprobs": True, "top_logprobs": 4},
    ),
    "a message": ("/v1/messages", {**CHAT, "max_tokens": 24, "temperature": 0}),
    "a response": (
        "/v1/responses",
        {
            "input": TEXT,
            "max_output_tokens": 24,
            "temperature": 0,
            "top_logprobs": 2,
            "include": ["message.output_text.logprobs"],
        },
    ),
}
NUM_ROUNDS = 6
"""Of each request, streamed and not."""


class Front(asyncio.Protocol):
    """A connection to ``target``. A request draws the first of ``places``: behind so many bytes of
    answers, on connections of their own or on channels, the connection that brings them breaks.
    Where no place is left, all stay whole."""

    transport: asyncio.Transport

    def __init__(self, target: tuple[str, int], c: CutWorld) -> None:
        self._target, self.c = target, c
        self._back: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._brings_answers = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.c.open.append(transport)
        self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        back, _ = await loop.create_connection(lambda: Back(self), *self._target)
        self.c.open.append(back)
        back.write(b"".join(self._waiting))
        self._back = back

    def data_received(self, piece: bytes) -> None:
        if piece.startswith(b"POST /v1/microserving/records "):
            self._brings_answers = False
        elif piece.startswith(b"POST "):
            self.c.left = self.c.places.popleft() if self.c.places else None
            self._brings_answers = True
        elif piece.startswith(b"GET "):
            self._brings_answers = b"/microserving/channel" in piece.partition(b"\r\n")[0]
        if self._back is None:
            self._waiting.append(piece)
        else:
            self._back.write(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._back is not None:
            self._back.abort()

    def answered(self, piece: bytes) -> None:
        if not self._brings_answers:
            self.transport.write(piece)
            return
        self.c.num_bytes += len(piece)
        if self.c.left is None:
            self.transport.write(piece)
            return
        self.transport.write(piece[: self.c.left])
        self.c.left -= len(piece)
        if self.c.left <= 0:
            self.c.left = None
            self.c.num_cut += 1
            self.transport.close()


class Back(asyncio.Protocol):
    def __init__(self, front: Front) -> None:
        self._front = front

    def data_received(self, piece: bytes) -> None:
        if not self._front.transport.is_closing():
            self._front.answered(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.transport.close()


@dataclass(eq=False)
class CutWorld:
    """``num_bytes``: of all answers of the nodes. ``left``: until the next break."""

    places: deque[int] = field(default_factory=deque)
    left: int | None = None
    open: list[asyncio.Transport] = field(default_factory=list)
    num_cut: int = 0
    num_bytes: int = 0


@asynccontextmanager
async def cut_world(nodes: list[RealNode]) -> AsyncIterator[tuple[World, CutWorld]]:
    c = CutWorld()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        named: list[Any] = []
        for node in nodes:
            url = urlsplit(node.peer.url)
            target = (url.hostname or "", url.port or 0)
            server = await loop.create_server(
                lambda target=target: Front(target, c), "127.0.0.1", 0
            )
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            peer = SimpleNamespace(url=f"http://127.0.0.1:{port}")
            named.append(SimpleNamespace(name=node.name, peer=peer))
        w = await stack.enter_async_context(world(nodes=named, resumes=True))
        yield w, c
    for transport in c.open:
        transport.abort()
    await asyncio.sleep(0)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RealNode]]:
    with real_nodes(3) as nodes:
        yield nodes


def read(answer: httpx.Response) -> dict[Any, Any]:
    """Texts, log probabilities and ends by choice, and all that a response says of itself."""
    assert answer.status_code == 200, answer.text
    found: dict[Any, Any] = {}
    if answer.headers["content-type"] == "application/json":
        _take(found, answer.json())
        return found
    for line in answer.text.split("\n"):
        if line.startswith("data: {"):
            event = msgspec.json.decode(line[6:])
            assert "error" not in event or event["error"] is None, event
            _take(found, event)
    return found


def _take(found: dict[Any, Any], body: dict[str, Any]) -> None:
    def add(key: Any, value: Any) -> None:
        if value:
            found[key] = found[key] + value if key in found else value

    for choice in body.get("choices", ()):
        index = choice["index"]
        said = choice.get("message") or choice.get("delta") or {}
        add(("text", index), choice.get("text") or said.get("content"))
        for name, values in (choice.get("logprobs") or {}).items():
            add((name, index), values)
        add(("end", index), choice.get("finish_reason"))
    add("text", (body.get("delta") or {}).get("text") if isinstance(body.get("delta"), dict) else 0)
    whole = body.get("response", body)
    for item in [*whole.get("output", ()), *whole.get("content", ())]:
        for part in item.get("content", (item,)):
            found["text"] = part["text"]
            found["logprobs"] = part.get("logprobs")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", ASKED)
async def test_it_is_what_it_would_have_been(
    nodes: list[RealNode], name: str, stream: bool
) -> None:
    path, fields = ASKED[name]
    body = {"model": MODEL, "stream": stream, **fields}
    chance = Random(f"{name} {stream}")
    async with cut_world(nodes) as (w, c):
        expected = read(await w.http.post(path, json=body))
        c.num_bytes = 0
        assert read(await w.http.post(path, json=body)) == expected
        num_bytes = c.num_bytes
        for _ in range(NUM_ROUNDS):
            c.places.clear()
            c.places.extend(chance.randrange(num_bytes) for _ in range(chance.choice((1, 1, 2))))
            assert read(await w.http.post(path, json=body)) == expected
        assert c.num_cut >= NUM_ROUNDS - 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
async def test_a_response_goes_on_without_what_its_node_alone_has(
    nodes: list[RealNode], by: str, stream: bool
) -> None:
    path, settings = "/v1/responses", {"model": MODEL, "max_output_tokens": 24, "temperature": 0}
    async with cut_world(nodes) as (w, c):
        behind = (await w.http.post("/v1/conversations", json={})).json()["id"]
        asked: dict[str, Any] = {**settings, "input": TEXT}
        if by == "conversation":
            asked["conversation"] = behind
        first = (await w.http.post(path, json=asked)).json()
        if by == "previous_response_id":
            behind = first["id"]
        body = {**settings, "input": "And on", "stream": stream, by: behind, "store": False}
        c.num_bytes = 0
        expected = read(await w.http.post(path, json=body))
        num_bytes = c.num_bytes
        for share in (0.7, 0.95):  # behind its first token: before, nobody else has the history
            c.places.append(int(share * num_bytes))
            got = read(await w.http.post(path, json=body))
            assert got.keys() == expected.keys()
            if by == "previous_response_id":  # a conversation has grown
                assert got == expected
        assert c.num_cut == 2
