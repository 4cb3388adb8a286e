"""A response of server-sent events whose client may disconnect, or read too slowly.

Owns the life of such a response. Must not know what the events mean.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import MappingProxyType

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.answers.disconnects import raise_failure, while_connected
from quire.server.answers.write_limit import WriteLimit
from quire.server.events import EVENT_HEADERS

HEARTBEAT = b": nothing has changed\n\n"
"""A comment, by which a reader knows that the server lives."""

HEARTBEAT_S = 10.0
"""After this time without a change of programs it is sent to their readers."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class EventStream(Response, ABC):
    """Sends ``events`` until there are no more of them or the client disconnects.

    ``write_timeout_s``: the longest time of one write. ``headers``: further ones. Nothing is
    buffered beyond the connection's own 64 KiB: an event is only made when the client can take it.
    """

    media_type = "text/event-stream"

    def __init__(self, write_timeout_s: float, headers: Mapping[str, str] = NO_HEADERS) -> None:
        super().__init__(headers={**EVENT_HEADERS, **headers})
        del self.headers["content-length"]  # that of the empty body
        self._writes = WriteLimit(write_timeout_s)

    @abstractmethod
    def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the framed events. Closed when the client has disconnected."""

    def opened(self) -> None:
        """Called before anything is sent; an exception becomes the answer. Does nothing by
        default."""

    def closed(self) -> None:
        """Called once, however the response ends, unless ``opened`` raised. Does nothing by
        default."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # an event need not pass the middlewares, which look at the start of a response alone
        self._send_body: Send = scope.get("state", {}).get("send_body", send)
        self.opened()
        work = asyncio.create_task(self._deliver(send))
        try:
            await while_connected(work, receive, writes=self._writes)
        finally:
            self.closed()
        raise_failure(work)

    async def _deliver(self, send: Send) -> None:
        with self._writes:
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
        await self._write(b"")
        async with aclosing(self.events()) as events:
            async for event in events:
                await self._write(event)
        await self._write(b"", more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        with self._writes:
            await self._send_body({"type": "http.response.body", "body": body, "more_body": more})
