"""The calls of one answer, returned piece by piece while they are parsed."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable

from quire.programs.chat.call_body import CallBody
from quire.programs.chat.pieces import CallArguments, CallStarted, Piece


def new_call_id() -> str:
    """An id in OpenAI's format."""
    return f"call_{secrets.token_hex(12)}"


def new_short_call_id() -> str:
    """Nine letters and digits, because templates of Mistral models refuse other ids."""
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(9))


class CallPieces:
    """Numbers the calls. ``is_started``: whether a piece of the present call was returned, so that
    it can no longer become content."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.num_calls = 0
        self.is_started = False

    def begin(self) -> None:
        """Note that the following text may be a call."""
        self.is_started = False

    def start(self, name: str) -> Piece:
        self.is_started = True
        self.num_calls += 1
        return CallStarted(self.num_calls - 1, self._new_id(), name)

    def arguments(self, text: str) -> list[Piece]:
        return [CallArguments(self.num_calls - 1, text)] if text else []

    def of_body(self, body: CallBody) -> list[Piece]:
        """The new pieces of ``body`` since the last call."""
        if body.name is None:
            return []
        started = [] if self.is_started else [self.start(body.name)]
        return started + self.arguments(body.take_arguments())
