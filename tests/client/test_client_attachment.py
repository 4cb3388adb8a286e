"""The WebSocket of one program, against a server of the test."""

from __future__ import annotations

import json

from websockets.asyncio.server import ServerConnection, serve

from quire.client.attachment import Attachment


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
