"""The end of an attachment, where the server and its client close at the same time."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect

from quire.node import ProgramHandle
from quire.node.programs.message_log import MessageLog, MessageReader
from quire.server.routes import attach


class Client:
    """The WebSocket of a client that leaves once it has heard of the end."""

    def __init__(self, close_error: Exception | None) -> None:
        self.headers: dict[str, str] = {}
        self.heard: list[str] = []
        self.closed_with: list[int] = []
        self._close_error = close_error

    async def send_text(self, text: str) -> None:
        self.heard.append(json.loads(text)["type"])

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self, code: int, reason: str | None = None) -> None:
        assert reason is None
        if self._close_error is not None:
            raise self._close_error
        self.closed_with.append(code)


class Ended:
    """A program that has ended."""

    has_left = False

    async def wait_ended(self) -> None: ...


@pytest.mark.parametrize("close_error", [None, WebSocketDisconnect(1006), TimeoutError()])
async def test_a_client_may_leave_before_the_server_has_closed(
    close_error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "record_frame", lambda kind, handle: {"type": kind})
    log = MessageLog()
    await log.put("said")
    log.close()
    client = Client(close_error)
    connection = attach._Connection(cast(WebSocket, client), cast(ProgramHandle, Ended()), 60.0)
    await connection.run(MessageReader(log, 0))
    assert client.heard == ["message", "ended"]
    assert client.closed_with == ([1000] if close_error is None else [])
