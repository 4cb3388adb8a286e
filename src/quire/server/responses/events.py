"""Events of a response: numbered in the order in which they are made, named by their type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from quire.server.events import named_event

_encode = msgspec.json.Encoder().encode


class EventWriter:
    """Makes framed events with numbers from 0 on, one per event."""

    def __init__(self) -> None:
        self._next = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        return named_event(kind, _encode({"type": kind, "sequence_number": self._take(), **fields}))

    def deltas(self, kind: str, **fields: Any) -> Callable[[str], bytes]:
        """Return a function that makes the events for the parts of a text; everything but the text
        is rendered once."""
        head = named_event(kind, _encode({"type": kind, **fields}))[: -len(b"}\n\n")]
        head += b',"sequence_number":'

        def fill(text: str) -> bytes:
            return b'%b%d,"delta":%b}\n\n' % (head, self._take(), _encode(text))

        return fill

    def _take(self) -> int:
        number, self._next = self._next, self._next + 1
        return number
