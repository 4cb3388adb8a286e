"""``start_generate`` under a ``request_id``: an answer is generated once, and told from its
beginning to whoever asks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from scripted_server import GatedEngine, RunningServer, running_server
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import AlreadyExists, InvalidArgument
from quire.core.ids import TenantId
from quire.server.microserving import kept_answers
from quire.server.microserving.kept_answers import KeptAnswers

KEY = "0123456789abcdef"
CONFIG = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, cluster_key=KEY)
TENANTS = tuple(TenantConfig(TenantId(name), (f"{name}-key",)) for name in ("red", "blue"))
WORDS = "say" + " one two three four" * 15

ENGINE = GatedEngine()


@pytest.fixture(scope="module")
def node() -> Iterator[RunningServer]:
    with running_server(CONFIG, TENANTS, load=lambda: ENGINE) as server:
        yield server


def body(request_id: str, prompt: str = WORDS, **fields: Any) -> dict[str, Any]:
    fields = {"max_tokens": 320, "stream": True} | fields
    return {"prompt": prompt, "request_id": request_id, **fields}


@asynccontextmanager
async def asking(
    node: RunningServer, asked: dict[str, Any], tenant: str = "red"
) -> AsyncIterator[httpx.Response]:
    headers = {"authorization": f"Bearer {tenant}-key", "x-quire-cluster-key": KEY}
    url = f"{node.url}/v1/microserving/start_generate"
    async with (
        httpx.AsyncClient(timeout=60) as http,
        http.stream("POST", url, json=asked, headers=headers) as answer,
    ):
        yield answer


async def told(node: RunningServer, asked: dict[str, Any], tenant: str = "red") -> httpx.Response:
    async with asking(node, asked, tenant) as answer:
        await answer.aread()
        return answer


async def test_a_stream_that_broke_is_told_again_from_its_beginning(node: RunningServer) -> None:
    ENGINE.close_after(3)  # the prompt needs two messages
    async with asking(node, body("broken")) as answer:
        program = answer.headers["x-quire-program-id"]
        first = await anext(answer.aiter_bytes())
    assert await asyncio.to_thread(ENGINE.arrived.wait, 60)
    ENGINE.gate.set()
    again = await told(node, body("broken"))
    assert again.status_code == 200
    assert again.headers["x-quire-program-id"] == program
    assert again.headers["content-type"].startswith("text/event-stream")
    assert again.content.startswith(first)
    assert again.content.endswith(b"data: [DONE]\n\n")
    ended = await told(node, body("broken"))
    assert ended.content == again.content


async def test_who_asks_while_it_runs_gets_all_of_the_one_answer(node: RunningServer) -> None:
    answers = await asyncio.gather(*(told(node, body("together")) for _ in range(3)))
    assert len({one.headers["x-quire-program-id"] for one in answers}) == 1
    assert len({one.content for one in answers}) == 1
    whole = [await told(node, body("whole", stream=False)) for _ in range(2)]
    assert whole[0].json() == whole[1].json()
    assert whole[0].json()["choices"][0]["text"] == WORDS[4:]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_id_is_for_one_request_of_one_tenant(node: RunningServer, stream: bool) -> None:
    asked = body(f"own {stream}", stream=stream)
    mine = await told(node, asked)
    refused = await told(node, {**asked, "max_tokens": 3})
    assert refused.status_code == 409
    assert f"'own {stream}' was used for another request" in refused.text
    other = await told(node, asked, "blue")
    program = "x-quire-program-id"
    assert other.status_code == 200
    assert other.headers[program] != mine.headers[program]


class Scripted:
    """A response of ``pieces``, each sent when ``turns`` has one more."""

    def __init__(self, *pieces: bytes, is_complete: bool = True) -> None:
        self.turns = asyncio.Semaphore(0)
        self.pieces = pieces
        self.num_begun = self.num_sent = 0
        self.is_complete = is_complete
        self.was_abandoned = False

    async def begin(self, on_complete: Callable[[], None]) -> Response:
        self.num_begun += 1
        return _Script(self, on_complete)


class _Script(Response):
    def __init__(self, script: Scripted, on_complete: Callable[[], None]) -> None:
        super().__init__()
        self._script, self._on_complete = script, on_complete

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        script = self._script
        gone = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in script.pieces:
            turn = asyncio.ensure_future(script.turns.acquire())
            await asyncio.wait({gone, turn}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                script.was_abandoned = True
                turn.cancel()
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            script.num_sent += 1
        gone.cancel()
        if script.is_complete:
            self._on_complete()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Client:
    """What one client receives. ``may_read``: cleared for one that does not read."""

    def __init__(self, kept: KeptAnswers, script: Scripted, name: str = "id") -> None:
        self.body, self.has_end = b"", False
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._gone = asyncio.Event()
        scope = {"type": "http", "method": "POST", "headers": [], "state": {}}
        key = TenantId("red"), name
        answer = kept.answer(Request(scope), key, b"", script.begin, 60.0)
        self.task = asyncio.create_task(answer(scope, self._receive, self._send))

    async def leave(self) -> None:
        self._gone.set()
        await self.task

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.may_read.wait()
        self.body += message.get("body", b"")
        self.has_end = self.has_end or message.get("more_body") is False


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def whole(kept: KeptAnswers, name: str, piece: bytes) -> Scripted:
    """Generate an answer of one piece."""
    script = Scripted(piece)
    script.turns.release()
    client = Client(kept, script, name)
    await client.task
    await settled()
    assert client.body == piece
    kept.check_invariants()
    return script


async def test_without_a_client_it_goes_on_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, script = KeptAnswers(), Scripted(b"a", b"b", b"c")
    await Client(kept, script).leave()
    script.turns.release()
    await settled()
    assert script.num_sent == 1  # it may be asked for again
    monkeypatch.setattr(kept_answers, "RETURN_S", 0.0)
    await Client(kept, script).leave()
    await asyncio.sleep(0.01)
    await settled()
    assert script.was_abandoned
    await whole(kept, "id", b"anew")


async def test_one_that_failed_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, script = KeptAnswers(), Scripted()

    async def refuse(on_complete: Callable[[], None]) -> Response:
        raise InvalidArgument("no")

    begin, script.begin = script.begin, refuse  # type: ignore[method-assign]
    with pytest.raises(InvalidArgument):
        await Client(kept, script).task
    await settled()
    script.begin = begin  # type: ignore[method-assign]
    script.is_complete = False  # its last event tells of an error
    for num_begun in (1, 2):
        await Client(kept, script).task
        await settled()
        assert script.num_begun == num_begun
    kept.check_invariants()


async def test_the_latest_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptAnswers()
    monkeypatch.setattr(kept_answers, "MAX_KEPT_BYTES", 100)
    scripts = {name: await whole(kept, name, b"x" * 40) for name in ("a", "b", "c")}
    for name, num_begun in (("c", 1), ("b", 1), ("a", 2)):
        scripts[name].turns.release()
        await Client(kept, scripts[name], name).task
        assert scripts[name].num_begun == num_begun
    monkeypatch.setattr(kept_answers, "MAX_KEPT", 1)
    await whole(kept, "d", b"y")
    await Client(kept, scripts["a"], "a").leave()
    assert scripts["a"].num_begun == 3


async def test_a_long_one_is_not_kept_and_waits_for_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_answers, "MAX_ANSWER_BYTES", 100)
    monkeypatch.setattr(kept_answers, "_AHEAD_BYTES", 50)
    kept, script = KeptAnswers(), Scripted(*(b"%d" % (at % 10) * 30 for at in range(20)))
    client = Client(kept, script)
    script.turns.release()
    await settled()
    client.may_read.clear()
    for _ in range(19):
        script.turns.release()
    await settled()
    assert script.num_sent < 6  # what its client has not read is not made
    kept.check_invariants()
    with pytest.raises(AlreadyExists, match="end its connection, and choose a new request_id"):
        await Client(kept, script).task
    client.may_read.set()
    await client.task
    assert client.has_end
    assert client.body == b"".join(script.pieces)
    await settled()
    assert kept._num_bytes == 0
    kept.check_invariants()
    again = Client(kept, script)
    await again.leave()
    assert script.num_begun == 2
