"""Tool calls in an answer's text: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

The format of Hermes and Qwen models, and of the shipped one. Owns text that may still become a
marker. Text that is not a well-formed call stays content; nothing is lost.
"""

from __future__ import annotations

from quire.programs.chat.call_body import CallBody
from quire.programs.chat.call_pieces import CallPieces
from quire.programs.chat.markers import num_suspect
from quire.programs.chat.pieces import Piece, TextPiece
from quire.programs.chat.text_reader import TextReader

CALL_START = "<tool_call>"
CALL_END = "</tool_call>"


class HermesCalls(TextReader):
    """The parser of this format. White space around calls is dropped."""

    def __init__(self, calls: CallPieces) -> None:
        super().__init__(calls)
        self._body: CallBody | None = None
        self._raw = ""
        self._gap = ""

    @property
    def open_call(self) -> int | None:
        is_open = self._calls.is_started and self._body is not None and not self._body.is_whole
        return self._calls.num_calls - 1 if is_open else None

    def finish(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if self._body is not None:
            rest = "" if self._calls.is_started else self._gap + self._raw + rest
        elif self._calls.num_calls:
            rest = rest.rstrip()
        return [TextPiece(rest)] if rest else []

    def _step(self, pieces: list[Piece]) -> bool:
        if self._body is None:
            return self._outside(pieces)
        if self._body.phase == "done":
            return self._behind_body()
        return self._inside(self._body, pieces)

    def _outside(self, pieces: list[Piece]) -> bool:
        start = self._held.find(CALL_START)
        if start >= 0:
            told = self._held[:start].rstrip()
            self._gap = self._held[len(told) : start]
            self._held = self._held[start + len(CALL_START) :]
            self._body, self._raw = CallBody(), CALL_START
            self._calls.begin()
        else:
            keep = num_suspect(self._held, CALL_START)
            told = self._held[: len(self._held) - keep].rstrip()
            self._held = self._held[len(told) :]
        if told:
            pieces.append(TextPiece(told))
        return start >= 0

    def _inside(self, body: CallBody, pieces: list[Piece]) -> bool:
        used = body.add_text(self._held)
        self._raw += self._held[:used]
        self._held = self._held[used:]
        if body.is_no_call:
            self._no_call(pieces)
            return True
        pieces += self._calls.of_body(body)
        if body.phase == "bad":
            # pieces were returned already; text up to the end marker is dropped
            body.phase = "done"
        return True

    def _no_call(self, pieces: list[Piece]) -> None:
        """The text is not a call: return the marker as content and parse the rest again."""
        rest = self._raw[len(CALL_START) :] + self._held
        self._body, self._held = None, rest
        pieces.append(TextPiece(self._gap + CALL_START))

    def _behind_body(self) -> bool:
        end = self._held.find(CALL_END)
        if end < 0:
            self._held = self._held[len(self._held) - num_suspect(self._held, CALL_END) :]
            return False
        self._held = self._held[end + len(CALL_END) :]
        self._body = None
        return True
