"""Clients that speak a simpler HTTP: version 1.0, and those that close their half of a connection.

Owns what such a client is answered and when it counts as gone. A client that has left and one that
has only finished sending look alike: both send a FIN. The second still reads, so something that it
must skip is written to find out, and the system of the first answers with a reset. Before an answer
that is ``100 Continue``, in a stream of events a comment. HTTP/1.0 knows nothing to skip before an
answer, so its clients get some time.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from quire.server.http_protocol import BoundedHttpProtocol

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT = b":\n\n"
_CHUNKED_COMMENT = b"3\r\n:\n\n\r\n"

_FIRST_LOOK_S = 0.05
"""A reset comes after one round trip."""

_LONGEST_PAUSE_S = 30.0
_OLD_CLIENT_S = 10.0
"""How long an HTTP/1.0 client that sends no more may wait for the start of its answer. Proxies
that speak 1.0 close so when their own client has left, and its work is to end soon."""


class SimpleClientsProtocol(BoundedHttpProtocol):
    """Answers HTTP/1.0 without chunks, and requests whose client has closed its half."""

    _timer: asyncio.TimerHandle | None = None
    _has_plain_events = False
    """An answer to HTTP/1.0 has begun that is a stream of events."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        is_old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, self._without_chunks(cycle, app) if is_old else app)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Whether the connection stays open: a whole request waits for its answer."""
        cycle = self.cycle
        if self._in_message or cycle is None or cycle.response_complete:
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
        """What the client must skip now. Nothing where it would stand in the middle of a body, and
        where an earlier request of the connection has its answer first."""
        cycle = self.cycle
        if self.pipeline:
            return b""
        if not cycle.response_started:
            return _CONTINUE
        if cycle.chunked_encoding:  # only events are, everything else has a length
            return _CHUNKED_COMMENT
        return _COMMENT if self._has_plain_events else b""

    def _look(self, waited_s: float) -> None:
        """Nothing is read any more, so nobody else notices a reset before the next write."""
        own: socket.socket = self.transport.get_extra_info("socket")
        if own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        elif not self.cycle.response_complete:
            self._probe(min(4 * waited_s, _LONGEST_PAUSE_S))

    def _without_chunks(self, cycle: RequestResponseCycle, app: Any) -> Any:
        """``app``, whose answers have a length or end with the connection, and have no chunks."""

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
