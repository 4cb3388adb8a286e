"""Passes an answer on to its client, piece by piece, and reports an error where the answer breaks
off.

Owns the response. An event is passed on whole or not at all, so that an error can follow it. Must
not know where the answer comes from.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence

from starlette.types import Send

from quire.cluster.passing.opened import OpenedAnswer
from quire.core.errors import EngineLost
from quire.server.answers.resuming.told_tokens import TELLS_HEADER
from quire.server.answers.write_limit import WriteLimit
from quire.server.anthropic.errors import error_events
from quire.server.errors.errors import body_of
from quire.server.events import DATA_EVENTS, named_event
from quire.server.listening.piece_writer import PieceWriter
from quire.server.microserving.channel_frames import CHANNEL_HEADER

logger = logging.getLogger(__name__)

_NOT_PASSED_ON = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"server",
        b"transfer-encoding",
        b"x-request-id",
        TELLS_HEADER.encode(),
        CHANNEL_HEADER.encode(),
    }
)
_MAX_EVENT_BYTES = 4 << 20
_SEQUENCE = re.compile(rb'"sequence_number": ?(\d{1,12})')
NODE_HEADER = b"x-quire-node"


class BrokenAnswer(Exception):
    """The client has a part of an answer whose rest is lost, in a form that has no place for an
    error: its connection has to be cut."""


class Delivery:
    """Delivers one answer to one client. ``send`` sends the head, ``send_body`` the rest; pieces
    that arrive while the client can take them are written by ``writer`` at once."""

    def __init__(
        self,
        opened: OpenedAnswer,
        path: str,
        request_id: str,
        writes: WriteLimit,
        writer: PieceWriter | None,
    ) -> None:
        self._opened = opened
        self._path = path
        self._request_id = request_id
        self._writes = writes
        self._writer = writer
        self._framed: Callable[[bytes], bytes] = _as_it_is
        self._held = b""
        self._last = b""
        self.num_bytes = 0

    async def run(self, send: Send, send_body: Send) -> None:
        """Deliver the answer to its end.

        Raises:
            BrokenAnswer: it breaks off in a form without a place for an error.
            SlowReader: the client does not read.
        """
        opened = self._opened
        answer = opened.answer
        headers = [pair for pair in answer.head.headers if pair[0] not in _NOT_PASSED_ON]
        if answer.engine:  # empty if the router made the answer itself
            headers.append((NODE_HEADER, answer.engine.encode("latin-1", "replace")))
        with self._writes:
            await send(
                {"type": "http.response.start", "status": answer.head.status, "headers": headers}
            )
        if opened.is_whole:
            await self._write(send_body, opened.first, more=False)
            return
        if opened.is_events:
            self._framed = self._whole_events
        # a stream may have no event for long; its client wants the head now
        await self._write(send_body, self._framed(opened.first))
        if self._writer is not None:
            answer.pass_to(self._pass_on)
        try:
            while piece := await answer.read():
                piece = self._framed(piece)
                if piece:
                    self._last = piece
                    await self._write(send_body, piece)
        except EngineLost as error:
            await self._broken(error, send_body)
        else:
            await self._write(send_body, self._held, more=False)

    def _pass_on(self, piece: bytes) -> bool:
        """Write ``piece`` now if the client can take it; return whether it could."""
        writer = self._writer
        if writer is None or not writer.is_ready:
            return False
        piece = self._framed(piece)
        if piece:
            self._last = piece
            self.num_bytes += len(piece)
            writer.write(piece)
        return True

    async def _broken(self, error: EngineLost, send_body: Send) -> None:
        logger.warning(
            "request %s: the answer of %s has broken off after %d bytes: %s",
            self._request_id,
            self._opened.answer.engine,
            self.num_bytes,
            error.message,
        )
        if not self._opened.is_events:
            raise BrokenAnswer from error
        said = EngineLost(
            f"{error.message}; what has been delivered of this answer is all there is: ask again"
        )
        events = b"".join(self._events(said))
        await self._write(send_body, events, more=False)

    def _whole_events(self, piece: bytes) -> bytes:
        """Return what can be passed on: everything up to the end of the last whole event."""
        if not self._held and piece.endswith(b"\n\n"):
            return piece
        held = self._held + piece
        end = held.rfind(b"\n\n") + 2
        if end < 2 and len(held) <= _MAX_EVENT_BYTES:
            self._held = held
            return b""
        if end < 2:
            end = len(held)
        self._held = held[end:]
        return held[:end]

    def _events(self, error: EngineLost) -> Sequence[bytes]:
        """Return the events with which the API in use reports that a stream has failed."""
        if self._path == "/v1/messages":
            return error_events(error)
        if not self._path.startswith("/v1/responses"):
            return [*DATA_EVENTS.errors(error), DATA_EVENTS.done]
        said = body_of(error)["error"]
        numbers = _SEQUENCE.findall(self._last)
        event = {
            "type": "error",
            "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
            "code": said["code"],
            "message": said["message"],
            "param": None,
        }
        return [named_event("error", json.dumps(event).encode())]

    async def _write(self, send_body: Send, body: bytes, *, more: bool = True) -> None:
        with self._writes:
            self.num_bytes += len(body)
            await send_body({"type": "http.response.body", "body": body, "more_body": more})


def _as_it_is(piece: bytes) -> bytes:
    return piece
