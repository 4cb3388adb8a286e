"""Handshakes that are refused: the client has the response, and nothing is logged as an error."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from quire.core.config import ServerConfig
from quire.server.listening.listener import make_listener


async def refused(app: ASGIApp) -> tuple[int, bytes]:
    """The status and the body with which ``app`` refuses a WebSocket."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        listener = make_listener(app, ServerConfig(), has_lifespan=False)
        serving = asyncio.create_task(listener.serve(sockets=[sock]))
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"ws://127.0.0.1:{sock.getsockname()[1]}/", proxy=None)
        listener.stop()
        await serving
    answer = refusal.value.response
    return answer.status_code, answer.body


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


async def test_a_refusal_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    assert await refused(PlainTextResponse("not here", 404)) == (404, b"not here")
    assert errors_of(caplog) == []


async def test_a_refusal_in_pieces_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def pieces() -> Any:
        yield b"not "
        yield b"here"

    assert await refused(StreamingResponse(pieces(), 404)) == (404, b"not here")
    assert errors_of(caplog) == []


async def test_a_handshake_that_is_left_open_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        """Return without an answer."""

    status, _ = await refused(silent)
    assert status == 500
    assert len(errors_of(caplog)) == 1


async def test_a_refusal_that_breaks_off_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.http.response.start", "status": 404, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"not", "more_body": True})

    with socket.create_server(("127.0.0.1", 0)) as sock:
        listener = make_listener(broken, ServerConfig(), has_lifespan=False)
        serving = asyncio.create_task(listener.serve(sockets=[sock]))
        with pytest.raises(Exception, match="did not receive a valid HTTP response"):
            await connect(f"ws://127.0.0.1:{sock.getsockname()[1]}/", proxy=None)
        listener.stop()
        await serving
    assert len(errors_of(caplog)) == 1
