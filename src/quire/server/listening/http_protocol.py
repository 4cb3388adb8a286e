"""The listener's HTTP/1.1: uvicorn's protocol over httptools, with limits on everything but the
body.

httptools buffers a header until it is complete, however long it is; this module limits that. Bodies
have their own limit, where they are read. The rest of a body that was answered early (413, 401) is
read here and dropped: closing with unread bytes would reset the connection, and a client that is
still sending might never see its answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quire.server.listening.connections import ConnectionTable
from quire.server.listening.gathered_writes import GatheredTransport, GatheredWrites

MAX_HEAD_BYTES = 64 << 10
"""The most bytes of request line, headers and trailers of one request."""

_PIECE_BYTES = 16 << 10
"""A read is parsed in pieces of this size, so that a head is checked before it is complete."""

_FRAMING_PER_BODY_BYTE = 8
"""How much larger than the body its chunked framing may be."""

MAX_DROPPED_BYTES = 64 << 20
"""The most bytes that are read of a body that was answered early; beyond it the connection is
closed."""

HEAD_TIMEOUT = b"The head of a request did not come in time."

_DROP_S = 30.0
"""Seconds for which the rest of such a body is read."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Answers a head longer than ``MAX_HEAD_BYTES`` with 400 and closes. A head must arrive within
    ``head_timeout_s`` of the start of the connection, or of its own first byte. ``writes`` and
    ``table`` are shared by the listener's connections."""

    _num_received = 0
    _num_body = 0
    _num_dropped = 0
    _in_message = False
    _stop_dropping: asyncio.TimerHandle | None = None
    _stop_waiting: asyncio.TimerHandle | None = None

    def __init__(
        self,
        *args: Any,
        writes: GatheredWrites,
        table: ConnectionTable,
        head_timeout_s: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._writes = writes
        self._table = table
        self._head_timeout_s = head_timeout_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gathered = GatheredTransport(cast(asyncio.Transport, transport), self._writes)
        super().connection_made(self._gathered)
        self._wait_for_head()
        self._table.opened(self, self.loop.time())

    def give_up(self) -> None:
        """Close at once: the connection's place is needed, and it has no running request."""
        self.transport.abort()

    def flush(self) -> None:
        """Give gathered writes to the transport now."""
        self._gathered.send_held()

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
        if self._stop_waiting is None:
            self._wait_for_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting_for_head()
        self._table.asked(self)
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._table.closed(self)  # the WebSocket protocol owns the connection from here on
        super().handle_websocket_upgrade()

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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, self._cut_short(cycle, app))

    def _cut_short(self, cycle: RequestResponseCycle, app: Any) -> Any:
        """Return ``app``, whose connection is cut where it gives its client up in the middle of an
        answer: one that takes nothing, or has lost a part. uvicorn would call that a fault of the
        application, and keep the connection until the client has taken what is buffered."""

        async def run(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            is_given_up = cycle.response_started or self.flow.write_paused
            if is_given_up and not (cycle.response_complete or cycle.disconnected):
                cycle.disconnected = True
                self.transport.abort()

        return run

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else a pipelined request has begun
            self._table.answered(self)
        if not (self._in_message and self.cycle.response_complete):
            return
        if self.expect_100_continue and not self._num_body:  # the client need not send the body now
            self.transport.close()
        elif not self.transport.is_closing():
            self._stop_dropping = self.loop.call_later(_DROP_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_dropping()
        self._stop_waiting_for_head()
        self._table.closed(self)
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._stop_waiting = self.loop.call_later(self._head_timeout_s, self._head_is_late)

    def _stop_waiting_for_head(self) -> None:
        if self._stop_waiting is not None:
            self._stop_waiting.cancel()
            self._stop_waiting = None

    def _head_is_late(self) -> None:
        """Close the connection. A client that has begun a request gets an error first. The time is
        not limited while an earlier request of the connection is being answered."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_for_head()
            return
        self._stop_waiting = None
        if self._in_message:
            length = str(len(HEAD_TIMEOUT)).encode()
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"connection: close\r\ncontent-length: " + length + b"\r\n\r\n" + HEAD_TIMEOUT
            )
        self.transport.close()

    def _forget_dropping(self) -> None:
        if self._stop_dropping is not None:
            self._stop_dropping.cancel()
            self._stop_dropping = None
