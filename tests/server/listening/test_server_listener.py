"""How a listener ends: with its last answer, at once if nothing is under way, never by a clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from quire.core.config import ServerConfig
from quire.server.listening.listener import Listener, make_listener


@dataclass
class Slow:
    """An application whose answers end when ``may_end`` is set."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun ", "more_body": True})
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        await send({"type": "http.response.body", "body": b"ended"})


@dataclass(frozen=True)
class Running:
    app: Slow
    listener: Listener
    serving: asyncio.Task[None]
    client: httpx.AsyncClient


@asynccontextmanager
async def running(close_timeout_s: float = 3600.0) -> AsyncIterator[Running]:
    app = Slow()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        listener = make_listener(
            app, ServerConfig(), has_lifespan=False, close_timeout_s=close_timeout_s
        )
        serving = asyncio.create_task(listener.serve(sockets=[sock]))
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield Running(app, listener, serving, client)
        listener.stop()
        await serving


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only turns of the loop are let through."""
    sleep = asyncio.sleep

    async def turn(delay_s: float, result: object = None) -> object:
        assert not delay_s, f"something sleeps for {delay_s} s"
        return await sleep(0, result)

    monkeypatch.setattr(asyncio, "sleep", turn)


@pytest.mark.usefixtures("no_pause")
async def test_it_ends_without_a_pause_when_nothing_is_under_way() -> None:
    async with running() as one:
        one.app.may_end.set()
        assert (await one.client.get("/")).text == "begun ended"
        one.listener.stop()  # the connection is still open
        await one.serving
        with pytest.raises(httpx.ConnectError):
            await one.client.get("/")


@pytest.mark.usefixtures("no_pause")
async def test_an_answer_under_way_is_given_whole() -> None:
    async with running() as one:
        asking = asyncio.create_task(one.client.get("/"))
        await one.app.begun.wait()
        one.listener.stop()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not one.serving.done()
        one.app.may_end.set()
        assert (await asking).text == "begun ended"
        await one.serving
        assert not one.app.was_cancelled


async def test_what_does_not_end_in_time_is_cancelled() -> None:
    async with running(close_timeout_s=0) as one:
        asking = asyncio.create_task(one.client.get("/"))
        await one.app.begun.wait()
        one.listener.stop()
        await one.serving
        with pytest.raises(httpx.RemoteProtocolError):
            await asking
        assert one.app.was_cancelled


async def test_it_can_be_told_to_wait_no_longer() -> None:
    async with running() as one:
        asking = asyncio.create_task(one.client.get("/"))
        await one.app.begun.wait()
        one.listener.stop()
        one.listener.hurry()
        await one.serving
        assert not one.app.was_cancelled, "that is for the application to do"
        one.app.may_end.set()
        await asking


async def test_a_connection_that_comes_in_the_place_of_another_is_waited_for() -> None:
    """As that of a WebSocket does, which was one of HTTP."""
    listener = make_listener(Slow(), ServerConfig(), has_lifespan=False)
    connections: Any = listener.server_state.connections
    connections.add("http")
    ending = asyncio.create_task(connections.ended())
    await asyncio.sleep(0)
    connections.discard("http")
    connections.add("websocket")
    for _ in range(3):
        await asyncio.sleep(0)
    assert not ending.done()
    connections.remove("websocket")
    await ending
