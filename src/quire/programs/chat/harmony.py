"""Answers in channels, the format of gpt-oss: messages with headers; a call is a message to a
function.

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>

The prompt ends with ``<|start|>assistant``. Messages on ``analysis`` are reasoning, and so are
messages to tools that are built into the model, which are not executed here; others are content.
Text without a header (because of a grammar, or because the prompt contains the header) is content.
"""

from __future__ import annotations

import re
from typing import Literal

from quire.programs.chat.call_body import ValueScanner
from quire.programs.chat.call_pieces import CallPieces
from quire.programs.chat.markers import num_suspect
from quire.programs.chat.pieces import Piece, Reasoning, TextPiece
from quire.programs.chat.text_reader import TextReader

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
"""Markers after a message. The last two begin the header of the next one."""
_MARKER = "<|"
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."

State = Literal["first", "header", "content", "reasoning", "call"]


class HarmonyReader(TextReader):
    """The parser of this format. ``tools``: whether calls are parsed; else they are content."""

    def __init__(self, calls: CallPieces, *, tools: bool) -> None:
        super().__init__(calls)
        self._tools = tools
        self._state: State = "first"
        self._is_whole = True
        self._scanner = ValueScanner()

    @property
    def open_call(self) -> int | None:
        return self._calls.num_calls - 1 if self._state == "call" and not self._is_whole else None

    def finish(self) -> list[Piece]:
        """The rest of the text; an incomplete header is dropped."""
        rest, self._held = self._held, ""
        if self._state == "header" or not rest:
            return []
        return self._told(rest)

    def _step(self, pieces: list[Piece]) -> bool:
        if self._state == "first":
            bare = self._held.lstrip()
            if bare.startswith(_MARKER):
                self._state = "header"
            elif _MARKER.startswith(bare):
                return False
            else:
                self._state = "content"
            return True
        return self._header(pieces) if self._state == "header" else self._message(pieces)

    def _header(self, pieces: list[Piece]) -> bool:
        header, found, behind = self._held.partition(_MESSAGE)
        if not found:
            return False
        self._held = behind
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        to = recipient[1] if recipient else ""
        if to.startswith(_FUNCTIONS) and self._tools:
            self._state, self._scanner, self._is_whole = "call", ValueScanner(), False
            pieces.append(self._calls.start(to.removeprefix(_FUNCTIONS)))
        elif (channel and channel[1] == "analysis") or (to and self._tools):
            self._state = "reasoning"
        else:
            self._state = "content"
        return True

    def _message(self, pieces: list[Piece]) -> bool:
        found = [(self._held.find(end), end) for end in _ENDS if end in self._held]
        if found:
            position, end = min(found)
            told, self._held = self._held[:position], self._held[position:]
            if end not in ("<|start|>", "<|channel|>"):
                self._held = self._held[len(end) :]
        else:
            keep = max(num_suspect(self._held, end) for end in _ENDS)
            told = self._held[: len(self._held) - keep]
            self._held = self._held[len(told) :]
        pieces += self._told(told)
        if found:
            self._state = "header"
        return bool(found)

    def _told(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._state == "reasoning":
            return [Reasoning(text)]
        if self._state != "call":
            return [TextPiece(text)]
        for char in text:
            self._is_whole = self._is_whole or self._scanner.ends_with(char)
        return self._calls.arguments(text)
