"""Tool calls that are a whole answer: ``{"name": ..., "parameters": {...}}``, separated by ``;``.

The format of Llama 3.1 to 3.3, which may write ``<|python_tag|>`` before it. A call has no marker,
so if the tools' names are known, an object is a call only if its name is one of them; any other
answer is content.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from quire.programs.chat.call_body import CallBody
from quire.programs.chat.call_pieces import CallPieces
from quire.programs.chat.pieces import Piece, TextPiece
from quire.programs.chat.text_reader import TextReader

PYTHON_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;"

State = Literal["before", "inside", "behind", "content"]


class LlamaCalls(TextReader):
    """The parser of this format. ``names``: the names of the tools, if known."""

    def __init__(self, calls: CallPieces, names: Collection[str] | None = None) -> None:
        super().__init__(calls)
        self._names = names
        self._state: State = "before"
        self._body = CallBody()
        self._raw = ""

    @property
    def open_call(self) -> int | None:
        is_open = self._state == "inside" and self._calls.is_started and not self._body.is_whole
        return self._calls.num_calls - 1 if is_open else None

    def finish(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if self._state == "inside":
            rest = "" if self._calls.is_started else self._raw + rest
        elif self._state == "behind":
            rest = rest.strip(_BETWEEN)
        return [TextPiece(rest)] if rest else []

    def _step(self, pieces: list[Piece]) -> bool:
        if self._state == "inside":
            return self._inside(pieces)
        if self._state == "content":
            pieces.append(TextPiece(self._held))
            self._held = ""
            return False
        return self._outside()

    def _outside(self) -> bool:
        """Parse text before a call, between calls, or other text."""
        bare = self._held.lstrip(_BETWEEN if self._state == "behind" else None)
        if bare.startswith(PYTHON_TAG):
            bare = bare.removeprefix(PYTHON_TAG).lstrip()
        if bare.startswith("{"):
            self._raw = self._held[: len(self._held) - len(bare)]
            self._held = bare
            self._state, self._body = "inside", CallBody()
            self._calls.begin()
            return True
        if PYTHON_TAG.startswith(bare):
            return False  # white space, or an incomplete marker
        if self._state == "behind":
            self._held = bare
        self._state = "content"
        return True

    def _inside(self, pieces: list[Piece]) -> bool:
        body = self._body
        used = body.add_text(self._held)
        self._raw += self._held[:used]
        self._held = self._held[used:]
        if not self._calls.is_started and (body.is_no_call or not self._is_known(body.name)):
            self._state = "content"
            self._held = self._raw + self._held
            return True
        pieces += self._calls.of_body(body)
        if body.phase in ("done", "bad"):
            self._state = "behind"
        return True

    def _is_known(self, name: str | None) -> bool:
        return name is None or self._names is None or name in self._names
