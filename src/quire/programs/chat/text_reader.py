"""What the readers of all forms have in common: text that comes in parts, read step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quire.programs.chat.call_pieces import CallPieces
from quire.programs.chat.pieces import Piece


class TextReader(ABC):
    """``feed`` text as it comes, ``finish`` once. However it is cut, the pieces add up to the same;
    what is read as nothing else is content."""

    def __init__(self, calls: CallPieces) -> None:
        self._calls = calls
        self._held = ""
        """Text of which it is not known yet what it is."""

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and self._step(pieces):
            pass
        return pieces

    @abstractmethod
    def finish(self) -> list[Piece]:
        """The text has ended, perhaps in the middle of a call or a header."""

    @property
    @abstractmethod
    def open_call(self) -> int | None:
        """The call before whose arguments' end the text so far ends."""

    @abstractmethod
    def _step(self, pieces: list[Piece]) -> bool:
        """Move on, adding to ``pieces``; whether there may be more to do with what is held."""
