"""Sends a background response to a client that follows it; its disconnect does not affect the
response.

Owns the connection's life: a client that disconnects, or reads too slowly, is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.events import EVENT_HEADERS
from quire.server.write_limit import SlowReader, WriteLimit, disconnected


class FollowedResponse(Response):
    """Sends ``events`` as they are made. ``write_timeout_s`` limits each write."""

    def __init__(
        self, events: AsyncIterator[bytes], *, write_timeout_s: float, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**EVENT_HEADERS, **headers}, media_type="text/event-stream")
        del self.headers["content-length"]  # that of the empty body
        self._events = events
        self._writes = WriteLimit(write_timeout_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._deliver(send))
        gone = asyncio.create_task(disconnected(receive))
        self._writes.watch(work)
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writes.stop()
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled() and not isinstance(work.exception(), SlowReader):
            work.result()

    async def _deliver(self, send: Send) -> None:
        headers = self.raw_headers
        with self._writes:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for events in self._events:
            await self._write(send, events, more=True)
        await self._write(send, b"", more=False)

    async def _write(self, send: Send, body: bytes, *, more: bool) -> None:
        with self._writes:
            await send({"type": "http.response.body", "body": body, "more_body": more})
