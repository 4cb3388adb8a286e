"""``/v1/programs/{id}/attach``: a WebSocket to a running program.

Frames are JSON text. From the program::

    {"type": "message", "sequence": 1, "text": "..."}    each message
    {"type": "ended", "program": {...}}                  the last frame
    {"type": "error", "error": {...}}                    about a frame that could not be used

To the program::

    {"type": "message", "text": "..."}
    {"type": "end_of_input"}
    {"type": "cancel"}

``?after=N`` skips the first N messages, so that a client may attach again where it left off.
Detaching leaves the program running. When a program has moved to another node, its connections are
closed with code 1012, and the reason says how many frames of the connection were taken; the client
sends the others again over its next attachment.

A router names its connections (``x-quire-connection``). If the one before broke off, it names that
as well (``x-quire-connection-before``), and the answer to the handshake has the number of its
frames that were taken (``x-quire-frames-taken``).
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect

from quire.core.errors import MailboxFull, QuireError
from quire.node import MessageReader, ProgramHandle
from quire.server.context import caller_of, context_of
from quire.server.errors.errors import HttpError, body_of, error_body, refuse_websocket
from quire.server.programs.attachments import (
    BEFORE_HEADER,
    CONNECTION_HEADER,
    HAS_MOVED,
    TAKEN_HEADER,
    moved_reason,
)
from quire.server.programs.records import message_frame, record_frame
from quire.server.requests.query_names import check_query
from quire.server.requests.strict_json import strict_loads
from quire.server.routes.programs import After, PublicId
from quire.server.schemas.programs import ClientFrame, MessageFrame
from quire.server.security import refuse

router = APIRouter()

_FRAMES: TypeAdapter[ClientFrame] = TypeAdapter(ClientFrame)
_NORMAL = 1000
_NAME = re.compile(r"[0-9a-f]{32}")
_TRY_AGAIN_LATER = 1013


@router.websocket("/v1/programs/{program}/attach")
async def attach(websocket: WebSocket, program: PublicId, after: After = 0) -> None:
    context = context_of(websocket)
    try:
        check_query(websocket.query_params, ("after",))
        handle = context.node.program(program, caller_of(websocket))
    except QuireError as error:
        await refuse(error, websocket.scope, websocket.receive, websocket.send)
        return
    except HttpError as error:
        await refuse_websocket(websocket, error)
        return
    before, headers = websocket.headers.get(BEFORE_HEADER), []
    if before is not None and (num_taken := handle.num_frames(before)) is not None:
        headers.append((TAKEN_HEADER.encode(), b"%d" % num_taken))
    await websocket.accept(headers=headers)
    reader = handle.attach(after)
    connection = _Connection(websocket, handle, context.config.write_timeout_s)
    try:
        await connection.run(reader)
    finally:
        reader.close()


class _Connection:
    """Both directions of one connection; it ends with the program or with the client."""

    def __init__(self, websocket: WebSocket, handle: ProgramHandle, write_timeout_s: float) -> None:
        self._websocket = websocket
        self._handle = handle
        self._write_timeout_s = write_timeout_s
        name = websocket.headers.get(CONNECTION_HEADER, "")
        self._name = name if _NAME.fullmatch(name) else None
        self._num_taken = 0
        """Number of frames taken from the client."""

    async def run(self, reader: MessageReader) -> None:
        outward = asyncio.create_task(self._send_messages(reader))
        inward = asyncio.create_task(self._take_frames())
        try:
            await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            outward.cancel()
            inward.cancel()
            results = await asyncio.gather(outward, inward, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, _GONE):
                raise result
        if isinstance(results[0], int):
            with suppress(*_GONE):  # a client that knows of the end may leave first
                async with asyncio.timeout(self._write_timeout_s):
                    code = results[0]
                    reason = moved_reason(self._num_taken) if code == HAS_MOVED else None
                    await self._websocket.close(code, reason)

    async def _send_messages(self, reader: MessageReader) -> int:
        """Send messages until the program's end; return the code to close with."""
        try:
            async for message in reader:
                await self._send(message_frame(message))
        except MailboxFull as error:
            await self._send({"type": "error", **body_of(error)})
            return _TRY_AGAIN_LATER
        await self._handle.wait_ended()
        if self._handle.has_left:
            return HAS_MOVED
        await self._send(record_frame("ended", self._handle))
        return _NORMAL

    async def _take_frames(self) -> None:
        """Take frames until the client leaves. The client has to wait while the program does not
        read, and during a move: a frame counts as taken once the program can receive it at once."""
        while True:
            raw = await self._receive()
            await self._handle.wait_here()
            self._num_taken += 1
            if self._name is not None:
                self._handle.take_frame(self._name)
            try:
                frame = _FRAMES.validate_python(strict_loads(raw))
                if isinstance(frame, MessageFrame):
                    await self._handle.send(frame.text)
                else:
                    self._handle.signal(frame.type)
            except HttpError as error:
                await self._complain(error_body(400, error.detail, code=error.code))
            except ValidationError as error:
                problem = error.errors(include_url=False, include_input=False)[0]["msg"]
                await self._complain(error_body(400, problem, code="invalid_argument"))
            except QuireError as error:
                await self._complain(body_of(error))

    async def _receive(self) -> bytes:
        """Return the next frame as bytes. Frames of text and of bytes are both accepted: they
        contain JSON."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"], message.get("reason"))
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text.encode("utf-8", "surrogatepass")

    async def _complain(self, body: dict[str, Any]) -> None:
        await self._send({"type": "error", **body})

    async def _send(self, frame: dict[str, Any]) -> None:
        async with asyncio.timeout(self._write_timeout_s):
            await self._websocket.send_text(json.dumps(frame))


_GONE = (WebSocketDisconnect, TimeoutError)
"""The client has disconnected, or has read nothing for too long."""
