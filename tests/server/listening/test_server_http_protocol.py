"""Answers that their application gives up: the connection ends with them, and it is no error."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.core.config import ServerConfig
from quire.server.answers.event_stream import EventStream
from quire.server.listening.listener import Listener, make_listener


@asynccontextmanager
async def asked(app: ASGIApp) -> AsyncIterator[tuple[Listener, asyncio.StreamReader]]:
    """``app`` behind a listener, asked by a client that reads nothing by itself."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        listener = make_listener(app, ServerConfig(), has_lifespan=False)
        serving = asyncio.create_task(listener.serve(sockets=[sock]))
        reader, writer = await asyncio.open_connection(*sock.getsockname(), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        try:
            yield listener, reader
        finally:
            writer.close()
            listener.stop()
            await serving


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


class Endless(EventStream):
    async def events(self) -> AsyncGenerator[bytes, None]:
        while True:
            yield b"x" * 65536


async def test_a_client_that_takes_nothing_keeps_no_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is buffered for it would keep the connection open for as long as it likes."""
    given_up = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Endless(write_timeout_s=0.05)(scope, receive, send)
        given_up.set()

    async with asked(app) as (listener, _):
        await given_up.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not listener.server_state.connections
    assert errors_of(caplog) == []


async def test_an_answer_that_breaks_off_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """As where the channel of a router is lost that had a part of it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a part", "more_body": True})

    async with asked(app) as (_, reader):
        try:
            received = await reader.read(-1)
        except ConnectionError:
            received = b""
    assert not received.endswith(b"0\r\n\r\n"), "it would pass for whole"
    assert errors_of(caplog) == []


async def test_an_application_that_says_nothing_is_at_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Return without an answer."""

    async with asked(app) as (_, reader):
        assert b"500" in await reader.readline()
    assert errors_of(caplog) == ["ASGI callable returned without starting response."]
