"""The two connections of an attachment."""

from __future__ import annotations

from typing import Any

import pytest

from quire.cluster.passing.attaching import Attachments


class Opened:
    """The connection to the program's node."""

    num_closed = 0

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
