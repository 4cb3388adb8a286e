"""The parser of a whole answer: reasoning, then content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from quire.programs.chat.call_pieces import CallPieces, new_call_id, new_short_call_id
from quire.programs.chat.dialects import Dialect
from quire.programs.chat.harmony import HarmonyReader
from quire.programs.chat.hermes_calls import HermesCalls
from quire.programs.chat.llama_calls import LlamaCalls
from quire.programs.chat.mistral_calls import MistralCalls
from quire.programs.chat.pieces import Answer, Piece, Reasoning, TextPiece, whole_answer
from quire.programs.chat.reasoning import ReasoningSplitter
from quire.programs.chat.text_reader import TextReader


class AnswerParser:
    """Splits one answer's text into pieces as it arrives; call ``feed``, then ``finish`` once.

    ``tools``: whether tool calls are parsed in the format of ``dialect``, or the names of the
    tools, if only calls of these are. ``reasoning``: whether reasoning is separated (in ``HARMONY``
    it always is). With neither, all text is content. The pieces are the same however the text is
    divided among calls of ``feed``.
    """

    def __init__(
        self,
        *,
        tools: bool | Collection[str] = False,
        reasoning: bool = False,
        starts_in_reasoning: bool = False,
        dialect: Dialect = Dialect.HERMES,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self._reader = _reader(dialect, tools, new_id)
        splits = reasoning and dialect is not Dialect.HARMONY
        self._reasoning = ReasoningSplitter(starts_open=starts_in_reasoning) if splits else None

    @property
    def open_call(self) -> int | None:
        """The index of the call whose arguments are incomplete at the end of the text so far, or
        None."""
        return None if self._reader is None else self._reader.open_call

    def feed(self, text: str) -> list[Piece]:
        if self._reasoning is None:
            return self._content(text)
        return self._split(self._reasoning.feed(text))

    def finish(self) -> list[Piece]:
        pieces = self._split(self._reasoning.finish()) if self._reasoning is not None else []
        return pieces + (self._reader.finish() if self._reader is not None else [])

    def _split(self, parts: Iterable[TextPiece | Reasoning]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            pieces += self._content(part.text) if isinstance(part, TextPiece) else [part]
        return pieces

    def _content(self, text: str) -> list[Piece]:
        if self._reader is not None:
            return self._reader.feed(text)
        return [TextPiece(text)] if text else []


def _reader(
    dialect: Dialect, tools: bool | Collection[str], new_id: Callable[[], str] | None
) -> TextReader | None:
    short = dialect is Dialect.MISTRAL
    calls = CallPieces(new_id or (new_short_call_id if short else new_call_id))
    if dialect is Dialect.HARMONY:
        return HarmonyReader(calls, tools=bool(tools))
    if not tools:
        return None
    match dialect:
        case Dialect.LLAMA:
            return LlamaCalls(calls, None if isinstance(tools, bool) else tools)
        case Dialect.MISTRAL:
            return MistralCalls(calls)
        case Dialect.HERMES:
            return HermesCalls(calls)


def parse_answer(
    text: str,
    *,
    reasoning: bool = False,
    tools: bool | Collection[str] = True,
    dialect: Dialect = Dialect.HERMES,
    new_id: Callable[[], str] | None = None,
) -> Answer:
    """The parsed answer of a complete text, with its tool calls."""
    parser = AnswerParser(tools=tools, reasoning=reasoning, dialect=dialect, new_id=new_id)
    return whole_answer(parser.feed(text) + parser.finish())
