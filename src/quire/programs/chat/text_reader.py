"""The common part of the parsers of all dialects: text that arrives in parts, processed step by
step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quire.programs.chat.call_pieces import CallPieces
from quire.programs.chat.pieces import Piece


class TextReader(ABC):
    """Call ``feed`` with text as it arrives, then ``finish`` once. The pieces are the same however
    the text is divided; text that is not recognised is content."""

    def __init__(self, calls: CallPieces) -> None:
        self._calls = calls
        self._held = ""
        """Text that is not classified yet."""

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces):
            pass
        return pieces

    @abstractmethod
    def finish(self) -> list[Piece]:
        """The last pieces: the text has ended, perhaps within a call or a header."""

    @property
    @abstractmethod
    def open_call(self) -> int | None:
        """The index of the call whose arguments are incomplete at the end of the text so far, or
        None."""

    @abstractmethod
    def _step(self, pieces: list[Piece]) -> bool:
        """Process held text, adding to ``pieces``; return whether more of it may be processed."""
