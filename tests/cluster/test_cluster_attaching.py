"""The two connections of an attachment."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from quire.cluster.passing.attaching import Attachments
from quire.core.config import ServerConfig
from quire.core.errors import UnknownHandle


class Opened:
    """The connection to the program's node."""

    num_closed = 0
    close_code = 1006
    close_reason = ""

    async def recv(self) -> str:
        raise ConnectionClosedError(None, None)

    async def close(self) -> None:
        self.num_closed += 1


async def nothing() -> dict[str, Any]:
    return {"type": "websocket.connect"}


async def test_a_client_that_leaves_in_its_handshake_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attachments, opened = Attachments.__new__(Attachments), Opened()

    async def open_one(*_: Any) -> Opened:
        return opened

    async def gone(message: Any) -> None:
        raise OSError("the client has left")

    monkeypatch.setattr(attachments, "_open", open_one)
    with pytest.raises(OSError, match="has left"):
        await attachments.attach({"query_string": b""}, nothing, gone)
    assert opened.num_closed == 1


async def test_a_client_whose_program_is_lost_with_its_node_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In whole, in a frame as a node sends it: before, the client was told that the router went
    away."""
    attachments, opened, sent = Attachments.__new__(Attachments), Opened(), list[Any]()
    attachments._config = ServerConfig()
    found, why = iter([opened]), "the program was lost: it is not restartable. " * 4

    async def open_one(*_: Any) -> Opened:
        for one in found:
            return one
        raise UnknownHandle(why)

    async def stays() -> dict[str, Any]:
        if not sent:
            return {"type": "websocket.connect"}
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: Any) -> None:
        sent.append(message)

    monkeypatch.setattr(attachments, "_open", open_one)
    await attachments.attach({"query_string": b""}, stays, send)
    accepted, frame, close = sent
    assert accepted["type"] == "websocket.accept"
    told = json.loads(frame["text"])
    assert (told["type"], told["error"]["code"]) == ("error", "unknown_handle")
    assert told["error"]["message"] == why
    assert (close["code"], close["reason"]) == (1011, why[:120])
