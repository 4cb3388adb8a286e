"""JSON bodies in which only one text changes from event to event: rendered once, then filled in for
each token.

Knows no API: the caller renders one body with its own schema, so that a filled body equals what the
schema would have given.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec

_encode = msgspec.json.Encoder().encode


class TextEvent:
    """``render(text)`` gives the body for one text; it is called once."""

    __slots__ = ("_head", "_tail")

    def __init__(self, render: Callable[[str], bytes]) -> None:
        mark = f"text-{uuid.uuid4().hex}"
        self._head, found, self._tail = render(mark).partition(_encode(mark))
        assert found, "the rendered body must contain the text as one JSON string"

    def fill(self, text: str) -> bytes:
        return self._head + _encode(text) + self._tail
