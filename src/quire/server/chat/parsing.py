"""Parses one choice's text into pieces, and turns pieces into deltas and messages.

A whole message is the sum of the pieces that a stream would have sent, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from quire.programs.chat import (
    Answer,
    AnswerParser,
    CallArguments,
    CallStarted,
    Dialect,
    Piece,
    Reasoning,
    TextPiece,
)
from quire.server.schemas.chat import (
    ChatMessage,
    Delta,
    Function,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How answers are parsed. ``max_calls``: further calls are dropped, as the client requested
    (``parallel_tool_calls: false``); with 0, calls stay text, unless ``drops_calls``: the client
    has tools and has ruled out all calls, so calls are removed. ``starts_in_reasoning``: the prompt
    has already opened the model's reasoning. ``tools``: names of the tools."""

    max_calls: int | None = 0
    starts_in_reasoning: bool = False
    dialect: Dialect = Dialect.HERMES
    tools: frozenset[str] | None = None
    drops_calls: bool = False

    @property
    def finds_calls(self) -> bool:
        """Whether calls are separated from text."""
        return self.drops_calls or self.max_calls != 0


class ChoiceParser:
    """The parser of one choice. Call ``feed`` with its text as it arrives, and ``finish`` once.
    ``new_call_id``: makes ids of calls; random ones by default."""

    def __init__(self, reading: Reading, new_call_id: Callable[[], str] | None = None) -> None:
        self._max_calls = reading.max_calls
        self._is_cut = reading.drops_calls or bool(reading.max_calls)
        known_tools = True if reading.tools is None else reading.tools
        self._parser = AnswerParser(
            tools=known_tools if reading.finds_calls else False,
            reasoning=True,
            starts_in_reasoning=reading.starts_in_reasoning,
            dialect=reading.dialect,
            new_id=new_call_id,
        )

    @property
    def ends_in_call(self) -> bool:
        """Whether the text so far ends within a call's arguments: the client cannot run that
        call."""
        call = self._parser.open_call
        return call is not None and (self._max_calls is None or call < self._max_calls)

    def feed(self, text: str) -> list[Piece]:
        return self._kept(self._parser.feed(text))

    def finish(self) -> list[Piece]:
        """Return the text that was held back; it may end in the middle of a call."""
        return self._kept(self._parser.finish())

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        if not self._is_cut:
            return pieces
        limit = self._max_calls or 0
        return [
            piece
            for piece in pieces
            if not isinstance(piece, CallStarted | CallArguments) or piece.index < limit
        ]


def delta_of(piece: Piece) -> Delta:
    match piece:
        case TextPiece(text):
            return Delta(content=text)
        case Reasoning(text):
            return Delta(reasoning=text, reasoning_content=text)
        case CallStarted(index, id_, name):
            function = FunctionDelta(name=name, arguments="")
            return Delta(
                tool_calls=[ToolCallDelta(index=index, id=id_, type="function", function=function)]
            )
        case CallArguments(index, text):
            function = FunctionDelta(arguments=text)
            return Delta(tool_calls=[ToolCallDelta(index=index, function=function)])
    assert_never(piece)


def message_of(answer: Answer) -> ChatMessage:
    """Return the message of ``answer``. Its ``content`` is null only if there are calls and no
    text."""
    message = ChatMessage(
        role="assistant",
        content=answer.content if answer.content or not answer.calls else None,
        refusal=None,
    )
    if answer.reasoning:
        message.reasoning = message.reasoning_content = answer.reasoning
    if answer.calls:
        message.tool_calls = [
            ToolCall(
                id=call.id,
                type="function",
                function=Function(name=call.name, arguments=call.arguments),
            )
            for call in answer.calls
        ]
    return message
