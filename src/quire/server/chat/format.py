"""Formats chunks as ``/v1/chat/completions`` bodies, whole or as events.

Owns the order of events: first the role, then pieces, then the finish reason of each choice. Must
not know how text is parsed (``ChoiceParser``) nor how bytes are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.core.decoding import TokenLogprobs
from quire.core.errors import ProgramCancelled
from quire.core.interfaces import Tokenizer
from quire.programs.builtin import ChoiceChunk
from quire.programs.chat import Answer, Piece, Reasoning, TextPiece, whole_answer
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.answers.logprobs import chat_logprobs, prompt_logprobs
from quire.server.answers.text_event import TextEvent
from quire.server.answers.usage import UsageCounter
from quire.server.chat.parsing import ChoiceParser, Reading, delta_of, message_of
from quire.server.schemas.chat import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
    TokenLogprob,
)
from quire.server.schemas.generation import FinishReason


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The output options of the client. ``num_logprobs``: ``None`` for no log probabilities."""

    num_choices: int = 1
    num_logprobs: int | None = None
    include_reasoning: bool = True
    shows_prompt_logprobs: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


@dataclass(slots=True)
class _Choice:
    parser: ChoiceParser
    started: bool = False
    pieces: list[Piece] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_reasoning: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    text_event: TextEvent | None = None


class ChatFormatter:
    """One request's formatter; ``reading`` says how the text of its choices is parsed."""

    def __init__(
        self,
        frame: Frame,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        options: ChatOptions,
        reading: Reading,
    ) -> None:
        self._frame = frame
        self._tokenizer = tokenizer
        self._prompt_ids = prompt_ids
        self._options = options
        self._usage = UsageCounter(len(prompt_ids))
        self._prompt_scores: tuple[TokenLogprobs, ...] = ()
        self._choices = [_Choice(ChoiceParser(reading)) for _ in range(options.num_choices)]
        self._is_plain = not (
            options.num_logprobs is not None
            or options.return_token_ids
            or (options.include_usage and options.continuous_usage)
        )

    def feed(self, item: PromptChunk) -> list[bytes]:
        chunk = item.chunk
        if chunk.finish_reason == "cancelled":
            raise ProgramCancelled("the completion was cancelled before its end")
        self._usage.add(chunk)
        self._prompt_scores = chunk.prompt_logprobs or self._prompt_scores
        choice = self._choices[chunk.index]
        pieces = self._parse(choice, chunk)
        logprobs = self._logprobs(choice, chunk)
        choice.token_ids += chunk.token_ids
        events = self._opening(choice, chunk.index)
        events += self._pieces(chunk, pieces, logprobs)
        if choice.finish_reason is not None:
            events.append(self._closing(choice, chunk.index))
        return events

    def last_events(self) -> list[bytes]:
        if not self._options.include_usage:
            return []
        body = self._chunk([])
        body.usage = self._usage.usage(self._num_reasoning())
        return [body.to_json()]

    def whole(self) -> bytes:
        body = ChatCompletion(
            id=f"chatcmpl-{self._frame.key}",
            object="chat.completion",
            created=self._frame.created_unix_s,
            model=self._frame.model,
            choices=[self._whole_choice(i, choice) for i, choice in enumerate(self._choices)],
            usage=self._usage.usage(self._num_reasoning()),
            system_fingerprint=self._frame.fingerprint,
        )
        if self._options.return_token_ids:
            body.prompt_token_ids = list(self._prompt_ids)
        if self._options.shows_prompt_logprobs:
            body.prompt_logprobs = prompt_logprobs(self._tokenizer, self._prompt_scores)
        return body.to_json()

    def answers(self) -> list[Answer]:
        """Return the answers so far, one per choice."""
        return [whole_answer(choice.pieces) for choice in self._choices]

    def _parse(self, choice: _Choice, chunk: ChoiceChunk) -> list[Piece]:
        pieces = choice.parser.feed(chunk.text)
        if chunk.finish_reason is not None:
            pieces += choice.parser.finish()
        if any(isinstance(piece, Reasoning) for piece in pieces):
            choice.num_reasoning += len(chunk.token_ids)
            if not self._options.include_reasoning:
                pieces = [piece for piece in pieces if not isinstance(piece, Reasoning)]
        choice.pieces += pieces
        if chunk.finish_reason == "stop" and _asks_for_calls(choice):
            choice.finish_reason = "tool_calls"
        elif chunk.finish_reason in ("stop", "length"):
            choice.finish_reason = chunk.finish_reason
        choice.stop_reason = chunk.stop_reason
        return pieces

    def _logprobs(self, choice: _Choice, chunk: ChoiceChunk) -> ChoiceLogprobs | None:
        if self._options.num_logprobs is None or not chunk.token_ids:
            return None
        part = chat_logprobs(self._tokenizer, chunk.logprobs or (), self._options.num_logprobs)
        choice.logprobs += part.content or ()
        return part

    def _opening(self, choice: _Choice, index: int) -> list[bytes]:
        if choice.started:
            return []
        choice.started = True
        first = ChunkChoice(
            index=index, delta=Delta(role="assistant", content=""), finish_reason=None
        )
        body = self._chunk([first])
        if self._options.return_token_ids:
            body.prompt_token_ids = list(self._prompt_ids)
        return [body.to_json()]

    def _pieces(
        self, chunk: ChoiceChunk, pieces: list[Piece], logprobs: ChoiceLogprobs | None
    ) -> list[bytes]:
        """Return one event per piece. Figures and ids of the chunk's tokens go with the first
        piece; if all text is held back they get an event of their own, so that none is lost."""
        if self._is_plain and len(pieces) == 1 and isinstance(pieces[0], TextPiece):
            return [self._text_event(chunk.index, pieces[0].text)]
        deltas = [delta_of(piece) for piece in pieces]
        shows_ids = self._options.return_token_ids and chunk.token_ids
        if not deltas and (logprobs is not None or shows_ids):
            deltas = [Delta()]
        events = []
        for position, delta in enumerate(deltas):
            part = ChunkChoice(index=chunk.index, delta=delta, finish_reason=None)
            if position == 0 and logprobs is not None:
                part.logprobs = logprobs
            if position == 0 and shows_ids:
                part.token_ids = list(chunk.token_ids)
            events.append(self._chunk([part]).to_json())
        return events

    def _text_event(self, index: int, text: str) -> bytes:
        """Return the event of plain content; almost every event is one."""
        choice = self._choices[index]
        if choice.text_event is None:
            choice.text_event = TextEvent(lambda text: self._content(index, text))
        return choice.text_event.fill(text)

    def _content(self, index: int, text: str) -> bytes:
        delta = Delta(content=text)
        part = ChunkChoice(index=index, delta=delta, finish_reason=None)
        return self._chunk([part]).to_json()

    def _closing(self, choice: _Choice, index: int) -> bytes:
        last = ChunkChoice(
            index=index,
            delta=Delta(),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
        return self._chunk([last]).to_json()

    def _whole_choice(self, index: int, choice: _Choice) -> ChatChoice:
        assert choice.finish_reason is not None, "every choice has a last chunk"
        shows_logprobs = self._options.num_logprobs is not None
        whole = ChatChoice(
            index=index,
            message=message_of(whole_answer(choice.pieces)),
            logprobs=ChoiceLogprobs(content=choice.logprobs, refusal=None)
            if shows_logprobs
            else None,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
        if self._options.return_token_ids:
            whole.token_ids = choice.token_ids
        return whole

    def _num_reasoning(self) -> int | None:
        return sum(choice.num_reasoning for choice in self._choices) or None

    def _chunk(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        body = ChatCompletionChunk(
            id=f"chatcmpl-{self._frame.key}",
            object="chat.completion.chunk",
            created=self._frame.created_unix_s,
            model=self._frame.model,
            choices=choices,
            system_fingerprint=self._frame.fingerprint,
        )
        if self._options.include_usage:
            usage = self._usage.usage() if self._options.continuous_usage else None
            body.usage = usage
        return body


def _asks_for_calls(choice: _Choice) -> bool:
    """Return whether the finish reason is ``tool_calls``. It is not if a stop string may have
    truncated the last call, because the client cannot run that call."""
    return bool(whole_answer(choice.pieces).calls) and not choice.parser.ends_in_call
