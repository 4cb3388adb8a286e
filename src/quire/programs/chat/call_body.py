"""Parses one tool call's JSON character by character: ``{"name": ..., "arguments": ...}``.

Owns the parsing state. Returns the name as soon as it is complete and the arguments as they arrive,
so that a call can be streamed. A body that is not such an object becomes ``bad``.
"""

from __future__ import annotations

import json
from typing import Any, Literal

_SPACE = " \t\r\n"

Phase = Literal["start", "key", "colon", "value", "done", "bad"]


class ValueScanner:
    """Finds the end of one JSON value. Tracks strings and nesting, checks nothing else."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._kind: str | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether the value is a number or word, which ends before the next character that is not
        part of it."""
        return self._kind is not None and self._kind not in '"{['

    def ends_with(self, char: str) -> bool:
        """Process ``char`` of a string, object or array; return whether it is the last one."""
        if self._kind is None:
            self._kind = char
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                return self._depth == 0
            return False
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth == 0
        return False


class CallBody:
    """The parser of one call: call ``add`` until ``phase`` is ``done`` or ``bad``.

    ``name``: None until it was read. ``take_arguments`` returns new text of the arguments.
    """

    def __init__(self) -> None:
        self.phase: Phase = "start"
        self.name: str | None = None
        self._key = ""
        self._value: list[str] = []
        """The characters of the value so far. No text: a text would be copied for each."""
        self._scanner = ValueScanner()
        self._reading_key = False
        self._streaming = False
        self._arguments: list[str] = []
        self._has_arguments = False

    @property
    def is_no_call(self) -> bool:
        """Whether the text became ``bad`` before the call's name. After the name it stays a call,
        as the name is returned at once when the text comes in small parts."""
        return self.phase == "bad" and self.name is None

    @property
    def is_whole(self) -> bool:
        """Whether the call can be executed. Some models omit the last brace."""
        return self.phase == "done" or (self.name is not None and self._has_arguments)

    def add(self, char: str) -> None:
        if self.phase == "value":
            self._add_to_value(char)
        elif char in _SPACE:
            return
        elif self.phase == "start":
            self.phase = "key" if char == "{" else "bad"
        elif self.phase == "key":
            self._begin_key(char)
        elif self.phase == "colon":
            self.phase = "value" if char == ":" else "bad"
            self._begin_value()

    def add_text(self, text: str) -> int:
        """``add`` characters up to the object's end; return how many were used."""
        for position, char in enumerate(text):
            self.add(char)
            if self.phase in ("done", "bad"):
                return position + 1
        return len(text)

    def take_arguments(self) -> str:
        """Text of the arguments that was not returned before; empty until the name is known."""
        if self.name is None:
            return ""
        taken, self._arguments = self._arguments, []
        return "".join(taken)

    def _begin_key(self, char: str) -> None:
        if char == "}":
            self._close()
        elif char == '"':
            self.phase = "value"
            self._key = ""
            self._begin_value()
            self._reading_key = True
            self._scan(char)
        elif char != ",":
            self.phase = "bad"

    def _begin_value(self) -> None:
        self._value = []
        self._scanner = ValueScanner()
        self._reading_key = False

    def _add_to_value(self, char: str) -> None:
        if not self._value:
            if char in _SPACE:
                return
            if char in ",}]:":
                self.phase = "bad"
                return
            self._streaming = (
                not self._reading_key
                and char == "{"
                and self._key in ("arguments", "parameters")
                and self.name is not None
                and not self._has_arguments
            )
        if self._scanner.is_scalar and char in ",}]" + _SPACE:
            self._end_value()
            if self.phase == "key" and char not in _SPACE:
                self._begin_key(char)
            return
        self._scan(char)

    def _scan(self, char: str) -> None:
        self._value.append(char)
        if self._streaming:
            self._arguments.append(char)
        if self._scanner.ends_with(char) and not self._scanner.is_scalar:
            self._end_value()

    def _end_value(self) -> None:
        text = "".join(self._value)
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):  # the second: brackets without end
            # streamed text cannot be taken back; the call keeps the text as the model wrote it
            value = None
            if not self._streaming:
                self.phase = "bad"
                return
        if self._reading_key:
            self._key = value
            self.phase = "colon"
            return
        self.phase = "key"
        self._keep(value, text)
        self._streaming = False

    def _keep(self, value: Any, text: str) -> None:
        if self._key == "name":
            if self.name is None and isinstance(value, str) and value:
                self.name = value
            else:
                self.phase = "bad"
        elif self._key in ("arguments", "parameters") and not self._has_arguments:
            self._has_arguments = True
            if not self._streaming:
                # some models write the arguments as a string that contains JSON
                self._arguments = [value if isinstance(value, str) else text]
                if value is None:
                    self._arguments = ["{}"]

    def _close(self) -> None:
        if self.name is None:
            self.phase = "bad"
            return
        self.phase = "done"
        if not self._has_arguments:
            self._arguments = ["{}"]
