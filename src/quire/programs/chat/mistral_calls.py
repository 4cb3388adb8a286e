"""Tool calls after ``[TOOL_CALLS]``: a list of objects, or a name and its arguments.

The formats of Mistral's models: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``, and in
newer ones ``[TOOL_CALLS]name[ARGS]{...}`` for each call, optionally with a ``[CALL_ID]`` before the
arguments. Other text after the marker is content.
"""

from __future__ import annotations

import re
from typing import Literal

from quire.programs.chat.call_body import CallBody, ValueScanner
from quire.programs.chat.call_pieces import CallPieces
from quire.programs.chat.markers import num_suspect
from quire.programs.chat.pieces import Piece, TextPiece
from quire.programs.chat.text_reader import TextReader

CALLS_START = "[TOOL_CALLS]"
_NAMED = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
"""A call's name, up to its arguments."""
_NAMED_PART = re.compile(
    r"[\w.-]+\s*(?:\[[A-Z_]*|\[CALL_ID\]\s*\w*\s*(?:\[[A-Z]*)?)?(?:\[ARGS\])?\s*"
)
"""The same before the arguments have arrived."""

State = Literal["outside", "begin", "list", "object", "arguments"]


class MistralCalls(TextReader):
    """The parser of these formats. White space around calls is dropped."""

    def __init__(self, calls: CallPieces) -> None:
        super().__init__(calls)
        self._state: State = "outside"
        self._raw = ""
        """Text of a possible call that was processed but may still become content."""
        self._in_list = False
        self._body = CallBody()
        self._scanner = ValueScanner()

    @property
    def open_call(self) -> int | None:
        in_object = self._state == "object" and self._calls.is_started and not self._body.is_whole
        is_open = in_object or self._state == "arguments"
        return self._calls.num_calls - 1 if is_open else None

    def finish(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if self._state == "begin" or (self._state == "object" and not self._calls.is_started):
            rest = self._raw + rest
        elif self._state != "outside":
            rest = ""
        elif self._calls.num_calls:
            rest = rest.rstrip()
        return [TextPiece(rest)] if rest else []

    def _step(self, pieces: list[Piece]) -> bool:
        match self._state:
            case "outside":
                return self._outside(pieces)
            case "begin":
                return self._begin(pieces)
            case "list":
                return self._between()
            case "object":
                return self._object(pieces)
            case "arguments":
                return self._arguments(pieces)

    def _outside(self, pieces: list[Piece]) -> bool:
        start = self._held.find(CALLS_START)
        if start >= 0:
            told = self._held[:start].rstrip()
            self._raw = self._held[len(told) : start + len(CALLS_START)]
            self._held = self._held[start + len(CALLS_START) :]
            self._state = "begin"
        else:
            keep = num_suspect(self._held, CALLS_START)
            told = self._held[: len(self._held) - keep].rstrip()
            if self._calls.num_calls and not told.strip():
                told = ""  # white space after a call
            self._held = self._held[len(told) :]
        if told:
            pieces.append(TextPiece(told))
        return start >= 0

    def _begin(self, pieces: list[Piece]) -> bool:
        bare = self._held.lstrip()
        if not bare:
            return False
        if bare[0] in "[{":
            self._in_list = bare[0] == "["
            bare = bare[1:] if self._in_list else bare
            self._take(len(self._held) - len(bare))
            self._state = "list" if self._in_list else "object"
            self._body = CallBody()
            self._calls.begin()
            return True
        named = _NAMED.match(bare)
        if named is not None:
            pieces.append(self._calls.start(named[1]))
            self._held = bare[named.end() :]
            self._state, self._scanner = "arguments", ValueScanner()
            return True
        if _NAMED_PART.fullmatch(bare):
            return False
        self._no_call(pieces)
        return True

    def _between(self) -> bool:
        """Parse the text of a list before an object or the end of the list."""
        bare = self._held.lstrip(" \t\r\n,")
        self._take(len(self._held) - len(bare))
        if bare.startswith("]"):
            self._held = bare[1:]
            self._state = "outside"
        elif bare:
            self._state, self._body = "object", CallBody()
            self._calls.begin()
        return bool(bare)

    def _object(self, pieces: list[Piece]) -> bool:
        body = self._body
        self._take(body.add_text(self._held))
        if body.is_no_call:
            self._no_call(pieces)
            return True
        pieces += self._calls.of_body(body)
        if body.phase in ("done", "bad"):
            self._raw = ""
            self._state = "list" if self._in_list and body.phase == "done" else "outside"
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        for position, char in enumerate(self._held):
            if self._scanner.ends_with(char):
                pieces += self._calls.arguments(self._held[: position + 1])
                self._held = self._held[position + 1 :]
                self._state, self._raw = "outside", ""
                return True
        pieces += self._calls.arguments(self._held)
        self._held = ""
        return False

    def _take(self, count: int) -> None:
        self._raw += self._held[:count]
        self._held = self._held[count:]

    def _no_call(self, pieces: list[Piece]) -> None:
        """The text is not a call: return it as content."""
        pieces.append(TextPiece(self._raw))
        self._raw = ""
        self._state = "outside"
