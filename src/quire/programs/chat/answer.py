"""The parser of a whole answer: reasoning first, then content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quire.programs.chat.pieces import Answer, Content, Piece, Reasoning, whole_answer
from quire.programs.chat.reasoning import ReasoningSplitter
from quire.programs.chat.tool_calls import ToolCallParser, new_call_id


class AnswerParser:
    """Splits one answer's text into pieces as it arrives; ``feed``, then ``finish`` once.

    ``reasoning``: ``<think>`` parts are told apart. ``tools``: tool calls are read. With neither,
    all text is content. However the text is cut into calls of ``feed``, the pieces add up to the
    same.
    """

    def __init__(
        self,
        *,
        tools: bool = False,
        reasoning: bool = False,
        starts_in_reasoning: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._calls = ToolCallParser(new_id) if tools else None
        self._reasoning = ReasoningSplitter(starts_open=starts_in_reasoning) if reasoning else None

    @property
    def open_call(self) -> int | None:
        """The call before whose arguments' end the text so far ends."""
        return None if self._calls is None else self._calls.open_call

    def feed(self, text: str) -> list[Piece]:
        if self._reasoning is None:
            return self._content(text)
        return self._split(self._reasoning.feed(text))

    def finish(self) -> list[Piece]:
        pieces = self._split(self._reasoning.finish()) if self._reasoning is not None else []
        return pieces + (self._calls.finish() if self._calls is not None else [])

    def _split(self, parts: Iterable[Content | Reasoning]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            pieces += self._content(part.text) if isinstance(part, Content) else [part]
        return pieces

    def _content(self, text: str) -> list[Piece]:
        if self._calls is not None:
            return self._calls.feed(text)
        return [Content(text)] if text else []


def parse_answer(
    text: str, *, reasoning: bool = False, new_id: Callable[[], str] = new_call_id
) -> Answer:
    """A whole text with its tool calls."""
    parser = AnswerParser(tools=True, reasoning=reasoning, new_id=new_id)
    return whole_answer(parser.feed(text) + parser.finish())


__all__ = ["AnswerParser", "parse_answer"]
