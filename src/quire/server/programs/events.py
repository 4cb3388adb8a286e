"""A program's mailbox messages as server-sent events, for clients that only read.

An event's data is a frame of ``attach``: at a launch first ``launched``, then each ``message`` (its
sequence number is the event's id), ``ended`` with the record, then ``[DONE]``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from quire.core.errors import EngineLost, InvalidArgument, MailboxFull
from quire.node import MessageReader, ProgramHandle
from quire.server.answers.event_stream import EventStream
from quire.server.errors.errors import body_of
from quire.server.events import DATA_EVENTS, data_event
from quire.server.programs.records import message_frame, record_frame


class ProgramEvents(EventStream):
    """Sends the messages of ``handle`` with a sequence number above ``after``, until it ends or the
    client disconnects.

    ``is_launch``: the request has launched the program, and its client's disconnect ends it.
    ``write_timeout_s``: longest time of one write.
    """

    def __init__(
        self,
        handle: ProgramHandle,
        write_timeout_s: float,
        *,
        after: int = 0,
        is_launch: bool = False,
    ) -> None:
        super().__init__(write_timeout_s)
        self._handle = handle
        self._after = after
        self._is_launch = is_launch
        self._reader: MessageReader

    def opened(self) -> None:
        self._reader = self._handle.attach(self._after)

    def closed(self) -> None:
        self._reader.close()
        if self._is_launch and not self._handle.ended:
            self._handle.terminate("its client, which was to read its messages, has left")

    async def events(self) -> AsyncGenerator[bytes, None]:
        if self._is_launch:
            await self._handle.kept()
            yield _event(record_frame("launched", self._handle))
        try:
            async for message in self._reader:
                yield b"id: %d\n" % message.sequence + _event(message_frame(message))
        except MailboxFull as error:
            yield _event({"type": "error", **body_of(error)})
        else:
            await self._handle.wait_ended()
            if self._handle.has_left:
                left = EngineLost("the program has moved to another node: ask the router for it")
                yield _event({"type": "error", **body_of(left)})
            else:
                yield _event(record_frame("ended", self._handle))
        yield DATA_EVENTS.done


def _event(frame: dict[str, Any]) -> bytes:
    return data_event(json.dumps(frame).encode())


def place_of(last_event_id: str | None, after: int) -> int:
    """Return the sequence number after which to begin: an ``EventSource`` that reconnects sends its
    last one.

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
