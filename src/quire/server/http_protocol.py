"""The listener's HTTP/1.1: uvicorn's protocol over httptools, with a bound on what is not body.

httptools keeps a header in memory until it is whole, however long it gets; this is the one place
that stops it. Bodies have their own limit, where they are read; the rest of a body that was
answered before its end (413, 401) is read here and dropped. To close with it unread would reset
the connection, and the client that is still sending might never see its answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.server.gathered_writes import GatheredTransport, GatheredWrites

MAX_HEAD_BYTES = 64 << 10
"""Request line, headers and trailers of one request."""

_PIECE_BYTES = 16 << 10
"""A read is parsed in such pieces, so that a head is looked at before it is whole."""

_FRAMING_PER_BODY_BYTE = 8
"""Chunked framing may be that much larger than the body that it carries."""

MAX_DROPPED_BYTES = 64 << 20
"""Of a body that was answered before its end; behind that the connection is closed."""

_DROP_S = 30.0
"""Seconds for which the rest of such a body is read."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers a request whose head passes ``MAX_HEAD_BYTES`` with 400 and closes. ``writes``: with
    those of the listener's other connections."""

    _num_received = 0
    _num_body = 0
    _num_dropped = 0
    _in_message = False
    _stop_dropping: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, writes: GatheredWrites, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._writes = writes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        gathered = GatheredTransport(cast(asyncio.Transport, transport), self._writes)
        super().connection_made(gathered)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._num_received += len(piece)
            super().data_received(piece)
            if self.transport.is_closing():
                return
            framing = self._num_received - (1 + _FRAMING_PER_BODY_BYTE) * self._num_body
            if framing > MAX_HEAD_BYTES:
                self.send_400_response(f"The request head is longer than {MAX_HEAD_BYTES} bytes.")
                return

    def on_message_begin(self) -> None:
        self._num_received = self._num_body = self._num_dropped = 0
        self._in_message = True
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._num_body += len(body)
        super().on_body(body)
        if self.cycle.response_complete:
            self._num_dropped += len(body)
            if self._num_dropped > MAX_DROPPED_BYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        self._in_message = False
        self._forget_dropping()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not (self._in_message and self.cycle.response_complete):
            return
        if self.expect_100_continue and not self._num_body:  # it may leave the body out now
            self.transport.close()
        elif not self.transport.is_closing():
            self._stop_dropping = self.loop.call_later(_DROP_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_dropping()
        super().connection_lost(exc)

    def _forget_dropping(self) -> None:
        if self._stop_dropping is not None:
            self._stop_dropping.cancel()
            self._stop_dropping = None


__all__ = ["MAX_DROPPED_BYTES", "MAX_HEAD_BYTES", "BoundedHttpProtocol"]
