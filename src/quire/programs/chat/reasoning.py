"""Separates reasoning from the answer: ``<think>`` ... ``</think>`` at the beginning."""

from __future__ import annotations

from quire.programs.chat.markers import num_suspect
from quire.programs.chat.pieces import Reasoning, TextPiece

THINK_START = "<think>"
THINK_END = "</think>"


class ReasoningSplitter:
    """Call ``feed`` with text as it arrives, then ``finish`` once.

    ``starts_open``: the prompt already contains the start marker, as in some templates. White space
    around the two parts is dropped.
    """

    def __init__(self, *, starts_open: bool = False) -> None:
        self._state = "reasoning" if starts_open else "start"
        self._held = ""
        self._bare = True  # no text of the present part was returned yet

    def feed(self, text: str) -> list[TextPiece | Reasoning]:
        self._held += text
        pieces: list[TextPiece | Reasoning] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[TextPiece | Reasoning]:
        rest, self._held = self._held, ""
        if self._state == "reasoning":
            rest = rest.lstrip() if self._bare else rest
            return [Reasoning(rest)] if rest else []
        if self._state == "gap":
            rest = rest.lstrip()
        return [TextPiece(rest)] if rest else []

    def _step(self, pieces: list[TextPiece | Reasoning]) -> bool:
        """Process the present state; return whether the next state has text to process."""
        if self._state == "start":
            return self._open()
        if self._state == "reasoning":
            return self._reason(pieces)
        if self._state == "gap":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "content"
            return bool(self._held)
        if self._held:
            pieces.append(TextPiece(self._held))
            self._held = ""
        return False

    def _open(self) -> bool:
        bare = self._held.lstrip()
        if bare.startswith(THINK_START):
            self._held = bare[len(THINK_START) :]
            self._state = "reasoning"
            return True
        if THINK_START.startswith(bare):
            return False  # white space, or an incomplete marker
        self._state = "content"
        return True

    def _reason(self, pieces: list[TextPiece | Reasoning]) -> bool:
        if self._bare:
            self._held = self._held.lstrip()
        end = self._held.find(THINK_END)
        if end >= 0:
            told = self._held[:end].rstrip()
            self._held = self._held[end + len(THINK_END) :]
            self._state = "gap"
        else:
            keep = num_suspect(self._held, THINK_END)
            told = self._held[: len(self._held) - keep].rstrip()
            self._held = self._held[len(told) :]
        if told:
            self._bare = False
            pieces.append(Reasoning(told))
        return self._state == "gap"
