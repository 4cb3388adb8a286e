"""Reads a JSON array piece by piece; each element is available as soon as it is complete.

Owns the bounds of what it keeps. Pieces may be cut anywhere.
"""

from __future__ import annotations

import json
from typing import Any

from quire.core.errors import InvalidArgument

MAX_ELEMENT_CHARS = 1 << 16
MAX_ELEMENTS = 1024


class JsonElements:
    """Call ``feed`` with text until ``ended``; ``elements``: the complete elements so far.

    Raises (from ``feed``):
        InvalidArgument: not an array, an element that is not JSON, or more than the bounds allow.
    """

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.ended = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._kept: list[str] = []

    def feed(self, text: str) -> None:
        for char in text:
            if self._in_string:
                self._kept.append(char)
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            else:
                self._outside(char)
            if len(self._kept) > MAX_ELEMENT_CHARS:
                raise InvalidArgument(
                    f"an element has more than {MAX_ELEMENT_CHARS} characters: limit them in the "
                    "schema (maxLength)"
                )

    def _outside(self, char: str) -> None:
        """Read one character that is not inside a string."""
        if self.ended or not self._depth:
            self._around(char)
        elif self._depth == 1 and char in ",]":
            self._complete(last=char == "]")
        else:
            self._depth += (char in "[{") - (char in "]}")
            self._in_string = char == '"'
            self._kept.append(char)

    def _around(self, char: str) -> None:
        if char.isspace():
            return
        if self.ended or char != "[":
            place = "behind" if self.ended else "before"
            raise InvalidArgument(f"{char!r} stands {place} the JSON array: give a schema of one")
        self._depth = 1

    def _complete(self, last: bool) -> None:
        text = "".join(self._kept).strip()
        self._kept.clear()
        self.ended = last
        if last and not text and not self.elements:
            return
        try:
            self.elements.append(json.loads(text))
        except ValueError as exc:
            raise InvalidArgument(f"an element is not JSON ({exc}): {text:.80}") from exc
        if len(self.elements) > MAX_ELEMENTS:
            raise InvalidArgument(
                f"the array has more than {MAX_ELEMENTS} elements: give maxItems in the schema"
            )
