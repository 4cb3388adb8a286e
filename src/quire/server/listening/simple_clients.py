"""Support for HTTP/1.0 clients, and for clients that close their sending half of a connection.

Owns the answers to such clients and the detection of a disconnect. A client that has left and one
that has only finished sending look alike: both send a FIN. The second still reads. To find out, the
server writes something that the client must skip: the system of a client that has left answers with
a reset. Before an answer this is ``100 Continue``, in a stream of events a comment. HTTP/1.0 has
nothing to skip before an answer, so its clients get some time instead.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from quire.server.listening.http_protocol import BoundedHttpProtocol
from quire.server.listening.piece_writer import STATE_KEY, PieceWriter

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT = b":\n\n"
_CHUNKED_COMMENT = b"3\r\n:\n\n\r\n"

_FIRST_LOOK_S = 0.05
"""A reset arrives after one round trip."""

_LONGEST_PAUSE_S = 30.0
_OLD_CLIENT_S = 10.0
"""How long a half-closed HTTP/1.0 client may wait for the start of its answer. Proxies that speak
1.0 half-close when their own client has left, and then the work should end soon."""


class SimpleClientsProtocol(BoundedHttpProtocol):
    """Answers HTTP/1.0 without chunked encoding, and requests of half-closed clients."""

    _timer: asyncio.TimerHandle | None = None
    _has_plain_events = False
    """Whether the answer to an HTTP/1.0 client is a stream of events."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["state"][STATE_KEY] = PieceWriter(cycle)
        is_old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, self._without_chunks(cycle, app) if is_old else app)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Return whether the connection stays open: a complete request waits for its answer."""
        cycle = self.cycle
        if self._in_message or cycle is None or cycle.response_complete:
            self.flush()  # asyncio closes its own transport now, which drops what is gathered
            return None
        cycle.keep_alive = False
        if not cycle.response_started and cycle.scope["http_version"] == "1.0":
            self._timer = self.loop.call_later(_OLD_CLIENT_S, self._give_up)
        else:
            self._probe(_FIRST_LOOK_S)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self.cycle.response_started:
            self._probe(_FIRST_LOOK_S)
        else:
            self.transport.close()

    def _probe(self, look_after_s: float) -> None:
        self.transport.write(self._skipped())
        self._timer = self.loop.call_later(look_after_s, self._look, look_after_s)

    def _skipped(self) -> bytes:
        """Return the bytes that the client must skip now: none in the middle of a body, nor before
        the answer of an earlier request of the connection."""
        cycle = self.cycle
        if self.pipeline:
            return b""
        if not cycle.response_started:
            return _CONTINUE
        if cycle.chunked_encoding:  # only event streams are chunked: everything else has a length
            return _CHUNKED_COMMENT
        return _COMMENT if self._has_plain_events else b""

    def _look(self, waited_s: float) -> None:
        """Check for a reset. Reading is paused, so it would not be noticed before the next
        write."""
        own: socket.socket = self.transport.get_extra_info("socket")
        if own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        elif not self.cycle.response_complete:
            self._probe(min(4 * waited_s, _LONGEST_PAUSE_S))

    def _without_chunks(self, cycle: RequestResponseCycle, app: Any) -> Any:
        """Return ``app`` with answers that have a length or end with the connection, without
        chunked encoding."""

        async def plain(scope: Any, receive: Any, send: Any) -> None:
            cycle.chunked_encoding = False

            async def send_plain(message: Any) -> None:
                if message["type"] == "http.response.body":
                    cycle.expected_content_length = len(message.get("body", b""))
                else:
                    kind = dict(message["headers"]).get(b"content-type", b"")
                    self._has_plain_events = kind.startswith(b"text/event-stream")
                await send(message)

            await app(scope, receive, send_plain)

        return plain
