"""The WebSocket of one program, against a server of the test."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from quire.client.attachment import Attachment, result_of
from quire.core.errors import ProgramCancelled, ProgramFailed, ProgramTerminated, QuireError


async def test_a_large_result_arrives() -> None:
    """Eight mebibytes of text that is not English are six times as long on the way."""
    result = "\u044f" * (4 << 20)

    async def answer(connection: ServerConnection) -> None:
        program = {"state": "finished", "result": result}
        await connection.send(json.dumps({"type": "ended", "program": program}))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        async with Attachment(f"http://127.0.0.1:{port}", {}, "prog-1") as attached:
            assert [message async for message in attached.messages()] == []
            assert await attached.result() == result


async def test_it_asks_with_the_clients_headers_for_what_comes_after_a_message() -> None:
    frames: list[dict[str, Any]] = []
    asked: list[tuple[str, str | None]] = []

    async def answer(connection: ServerConnection) -> None:
        assert connection.request is not None
        asked.append((connection.request.path, connection.request.headers.get("authorization")))
        frames.extend([json.loads(await connection.recv()) for _ in range(3)])
        program = {"state": "finished", "result": None}
        await connection.send(json.dumps({"type": "ended", "program": program}))

    async with serve(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/http-nodes/one"
        headers = {"authorization": "Bearer key"}
        async with Attachment(url, headers, "prog-1", after=3) as attached:
            await attached.send("hello")
            await attached.end_input()
            await attached.cancel()
            assert [message async for message in attached.messages()] == []
    assert asked == [("/http-nodes/one/v1/programs/prog-1/attach?after=3", "Bearer key")]
    assert frames == [
        {"type": "message", "text": "hello"},
        {"type": "end_of_input"},
        {"type": "cancel"},
    ]


@pytest.mark.parametrize(
    ("state", "error", "kind", "says"),
    [
        ("failed", ("program_failed", "division by zero"), ProgramFailed, "division by zero"),
        ("terminated", ("program_terminated", "too slow"), ProgramTerminated, "too slow"),
        ("terminated", ("a_new_code", "of a newer node"), QuireError, "of a newer node"),
        ("cancelled", ("program_cancelled", "by its parent"), ProgramCancelled, "by its parent"),
        ("cancelled", None, ProgramCancelled, "cancelled"),
    ],
)
def test_what_has_not_finished_raises_the_error_of_its_record(
    state: str, error: tuple[str, str] | None, kind: type[QuireError], says: str
) -> None:
    told = None if error is None else {"code": error[0], "message": error[1]}
    with pytest.raises(QuireError, match=f"^{says}$") as raised:
        result_of({"state": state, "result": None, "error": told})
    assert type(raised.value) is kind
