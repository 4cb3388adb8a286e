"""Parses server-sent events from bytes that arrive in any pieces (WHATWG HTML, 9.2.6).

Owns the parser. Must not know where the bytes come from.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from quire.core.errors import InvalidArgument

MAX_EVENT_CHARS = 8 << 20


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event. ``event``: its type. ``id``: the last id that was sent. ``retry_ms``: None if it
    was not sent."""

    data: str
    event: str = "message"
    id: str = ""
    retry_ms: int | None = None


class EventParser:
    """``feed`` it bytes; an event is returned when the empty line after it has arrived."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._after_return = False
        self._at_start = True
        self._data: list[str] = []
        self._num_chars = 0
        self._event = ""
        self._id = ""
        self._retry_ms: int | None = None

    def feed(self, content: bytes) -> list[ServerSentEvent]:
        """Events that are complete now.

        Raises:
            InvalidArgument: one event has more than 8 Mi characters.
        """
        text = self._decoder.decode(content)
        if self._at_start and text:
            text, self._at_start = text.removeprefix("\ufeff"), False
        if self._after_return and text:
            text, self._after_return = text.removeprefix("\n"), False
        self._after_return = self._after_return or text.endswith("\r")
        lines = (self._text + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._text = lines.pop()
        events = [event for line in lines if (event := self._take(line)) is not None]
        if self._num_chars + len(self._text) > MAX_EVENT_CHARS:
            raise InvalidArgument(
                f"one server-sent event has more than {MAX_EVENT_CHARS} characters"
            )
        return events

    def _take(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        self._num_chars += len(line)
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id" and "\0" not in value:
            self._id = value
        elif field == "retry" and value.isascii() and value.isdigit() and len(value) < 16:
            self._retry_ms = int(value)
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, name = self._data, self._event
        self._data, self._event, self._num_chars = [], "", 0
        if not data:
            return None
        return ServerSentEvent("\n".join(data), name or "message", self._id, self._retry_ms)
