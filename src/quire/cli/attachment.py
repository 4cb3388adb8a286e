"""A program on a running node, over ``/v1/programs/{id}/attach``.

Owns the frames of that WebSocket (docs/reference/http.md). Closing the connection leaves the
program running.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from quire.cli.client import NodeClient, error_of_body, unreachable
from quire.core.errors import (
    EngineLost,
    ErrorRecord,
    MailboxClosed,
    ProgramCancelled,
    QuireError,
    from_record,
)

_MAX_FRAME_BYTES = 8 << 20


class RemoteProgram:
    """One program of ``node``, attached to. An async context manager; see ``conversation``.

    ``after``: messages up to this sequence number are not repeated.
    """

    def __init__(self, node: NodeClient, public_id: str, after: int = 0) -> None:
        base = node.url.replace("http", "ws", 1)
        self._node = node
        self._address = f"{base}/v1/programs/{quote(public_id, safe='')}/attach?after={after}"
        self._connection: ClientConnection
        self._ended: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._connection = await connect(
                self._address, additional_headers=self._node.headers, max_size=_MAX_FRAME_BYTES
            )
        except InvalidStatus as exc:
            response = exc.response
            raise error_of_body(
                self._node.url, response.status_code, bytes(response.body or b"")
            ) from exc
        except (OSError, WebSocketException) as exc:
            raise unreachable(self._node.url, exc) from exc
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._connection.close()

    async def messages(self) -> AsyncIterator[str]:
        """The program's messages until it ends.

        Raises:
            EngineLost: the node went away.
            QuireError: what the node says of a frame that it could not use.
        """
        try:
            async for text in self._connection:
                frame = json.loads(text)
                if frame["type"] == "message":
                    yield frame["text"]
                elif frame["type"] == "ended":
                    self._ended = frame["program"]
                    return
                else:
                    raise from_record(
                        ErrorRecord(frame["error"]["code"], frame["error"]["message"])
                    )
        except ConnectionClosed as exc:
            raise self._lost() from exc
        raise self._lost()

    async def send(self, message: str) -> None:
        await self._send({"type": "message", "text": message})

    async def end_input(self) -> None:
        await self._send({"type": "end_of_input"})

    async def cancel(self) -> None:
        await self._send({"type": "cancel"})

    async def result(self) -> Any:
        """Known once ``messages`` has ended."""
        assert self._ended is not None, "read messages() to its end first"
        if self._ended["state"] == "finished":
            return self._ended["result"]
        error = self._ended["error"] or {"code": ProgramCancelled.code, "message": "cancelled"}
        raise from_record(ErrorRecord(error["code"], error["message"]))

    async def _send(self, frame: dict[str, Any]) -> None:
        try:
            await self._connection.send(json.dumps(frame))
        except ConnectionClosed as exc:
            raise MailboxClosed(f"the connection to {self._address} has closed") from exc

    def _lost(self) -> QuireError:
        return EngineLost(
            f"the node at {self._node.url} went away while the program ran: attach again when it "
            "is back"
        )


__all__ = ["RemoteProgram"]
