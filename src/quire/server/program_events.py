"""A program's mailbox messages as server-sent events, for clients that only read.

An event's data is a frame of ``attach``: at a launch first ``launched``, then each ``message`` (its
sequence number is the event's id), ``ended`` with the record, then ``[DONE]``.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.core.errors import InvalidArgument, MailboxFull
from quire.node import MessageReader, ProgramHandle
from quire.server.delivery import SlowReader, WriteLimit, disconnected
from quire.server.errors import body_of
from quire.server.events import DATA_EVENTS, EVENT_HEADERS, data_event
from quire.server.program_records import message_frame, record_frame


class ProgramEvents(Response):
    """Sends the messages of ``handle`` with a sequence number above ``after``, until it ends or the
    client disconnects.

    ``is_launch``: the request has launched the program, and its client's disconnect ends it.
    ``write_timeout_s``: longest time of one write.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        handle: ProgramHandle,
        write_timeout_s: float,
        *,
        after: int = 0,
        is_launch: bool = False,
    ) -> None:
        super().__init__(headers=EVENT_HEADERS)
        del self.headers["content-length"]  # of the empty body
        self._handle = handle
        self._after = after
        self._is_launch = is_launch
        self._writes = WriteLimit(write_timeout_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # an event need not pass the middlewares, which look at the start of a response alone
        self._send_body: Send = scope.get("state", {}).get("send_body", send)
        reader = self._handle.attach(self._after)
        work = asyncio.create_task(self._deliver(reader, send))
        gone = asyncio.create_task(disconnected(receive))
        self._writes.watch(work)
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writes.stop()
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            reader.close()
            if self._is_launch and not self._handle.ended:
                self._handle.terminate("its client, which was to read its messages, has left")
        if not work.cancelled() and not isinstance(work.exception(), SlowReader):
            work.result()

    async def _deliver(self, reader: MessageReader, send: Send) -> None:
        with self._writes:
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
        await self._write(
            _event(record_frame("launched", self._handle)) if self._is_launch else b""
        )
        try:
            async for message in reader:
                number = b"id: %d\n" % message.sequence
                await self._write(number + _event(message_frame(message)))
        except MailboxFull as error:
            last = _event({"type": "error", **body_of(error)})
        else:
            await self._handle.wait_ended()
            last = _event(record_frame("ended", self._handle))
        await self._write(last + DATA_EVENTS.done, more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        with self._writes:
            await self._send_body({"type": "http.response.body", "body": body, "more_body": more})


def _event(frame: dict[str, Any]) -> bytes:
    return data_event(json.dumps(frame).encode())


def place_of(last_event_id: str | None, after: int) -> int:
    """The sequence number after which to begin: an ``EventSource`` that reconnects sends its last
    one.

    Raises:
        InvalidArgument: the header is not a sequence number.
    """
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 16):
        raise InvalidArgument(
            f"Last-Event-ID is {last_event_id!r}: it must be the number of a message",
            param="Last-Event-ID",
        )
    return max(after, int(last_event_id))
