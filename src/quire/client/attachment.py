"""A program on a running node, over ``/v1/programs/{id}/attach``.

Owns the frames of that WebSocket (docs/reference/http.md). Closing the connection leaves the
program running.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from quire.client.wire import error_of_body, program_path, unreachable
from quire.core.errors import (
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    MailboxClosed,
    ProgramCancelled,
    QuireError,
    from_record,
)

_MAX_FRAME_BYTES = 64 << 20
"""The result of a sandboxed program may have 8 MiB, and up to six times as many as JSON."""


class Attachment:
    """A connection to one program of the node at ``url``. An async context manager.

    ``after``: messages up to this sequence number are skipped.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], public_id: str, after: int = 0
    ) -> None:
        self._url = url
        self._headers = headers
        base = url.replace("http", "ws", 1)
        self._address = f"{base}{program_path(public_id)}/attach?after={after}"
        self._connection: ClientConnection
        self._ended: dict[str, Any] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._connection = await connect(
                self._address, additional_headers=self._headers, max_size=_MAX_FRAME_BYTES
            )
        except InvalidStatus as exc:
            response = exc.response
            raise error_of_body(
                self._url, response.status_code, bytes(response.body or b"")
            ) from exc
        except (OSError, WebSocketException) as exc:
            raise unreachable(self._url, exc) from exc
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._connection.close()

    async def messages(self) -> AsyncIterator[str]:
        """Yield the program's mailbox messages until it ends.

        Raises:
            EngineLost: the connection to the node was lost.
            QuireError: the node refused a frame of this client.
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
        """Send a message. Raises ``MailboxClosed`` when the program has ended."""
        await self._send({"type": "message", "text": message})

    async def end_input(self) -> None:
        """Announce that nothing more will be sent: ``receive`` then raises in the program."""
        await self._send({"type": "end_of_input"})

    async def cancel(self) -> None:
        await self._send({"type": "cancel"})

    async def result(self) -> Any:
        """Return the program's result, or raise its error; available once ``messages`` has
        ended."""
        if self._ended is None:
            raise InvalidArgument("result of an attachment: read messages() to its end first")
        return result_of(self._ended)

    async def _send(self, frame: dict[str, Any]) -> None:
        try:
            await self._connection.send(json.dumps(frame))
        except ConnectionClosed as exc:
            raise MailboxClosed(f"the connection to {self._address} has closed") from exc

    def _lost(self) -> QuireError:
        return EngineLost(
            f"the node at {self._url} went away while the program ran: attach again when it is back"
        )


def result_of(ended: Mapping[str, Any]) -> Any:
    """Return the result in the record of an ended program, or raise the program's error."""
    if ended["state"] == "finished":
        return ended["result"]
    error = ended["error"] or {"code": ProgramCancelled.code, "message": "cancelled"}
    raise from_record(ErrorRecord(error["code"], error["message"]))
