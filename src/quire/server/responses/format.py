"""Formats chunks as a response object and its events.

Owns the order of items: reasoning, text and calls as they arrive, each opened, filled and closed
before the next. Must not know how text is parsed (``ChoiceParser``), how bytes are sent, or what is
stored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from quire.core.errors import ProgramCancelled, QuireError
from quire.core.interfaces import Tokenizer
from quire.programs.builtin import ChoiceChunk
from quire.programs.chat import (
    Answer,
    CallArguments,
    CallStarted,
    Piece,
    Reasoning,
    TextPiece,
    whole_answer,
)
from quire.server.answers.generation import PromptChunk
from quire.server.answers.logprobs import chat_logprobs
from quire.server.chat.parsing import ChoiceParser, Reading
from quire.server.errors.errors import status_of
from quire.server.responses.events import EventWriter
from quire.server.responses.items import (
    GrowingCall,
    GrowingItem,
    GrowingMessage,
    GrowingReasoning,
    ItemIds,
)
from quire.server.schemas.chat import TokenLogprob
from quire.server.schemas.response_items import ItemStatus
from quire.server.schemas.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
)

_UNFINISHED = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """``num_logprobs``: ``None`` for no log probabilities. ``page_size``: slots of a page."""

    num_prompt_tokens: int
    page_size: int
    num_logprobs: int | None = None


class ResponseFormatter:
    """The formatter of one response. ``base``: the object before anything has been generated."""

    def __init__(
        self,
        base: ResponseObject,
        tokenizer: Tokenizer,
        options: ResponseOptions,
        reading: Reading,
    ) -> None:
        self._base = base
        self._tokenizer = tokenizer
        self._options = options
        self._ids = ItemIds(base.id)
        self._parser = ChoiceParser(reading, self._ids.calls(reading.dialect))
        self._writer = EventWriter()
        self._status: ResponseStatus = base.status
        self._error: ResponseError | None = None
        self._completed_at: int | None = None
        self._items: list[GrowingItem] = []
        self._open: GrowingItem | None = None
        self._pieces: list[Piece] = []
        self._pending_logprobs: list[TokenLogprob] = []
        self._created = False
        self._started = False
        self._num_cached = 0
        self._num_reasoning = 0
        self.token_ids: list[int] = []

    # -- as a Formatter ----------------------------------------------------------------------------

    def feed(self, item: PromptChunk) -> list[bytes]:
        chunk = item.chunk
        if chunk.finish_reason == "cancelled":
            raise ProgramCancelled("the response was cancelled before its end")
        self._num_cached += chunk.num_cached_tokens
        self.token_ids += chunk.token_ids
        events = self._opening()
        for piece in self._parse(chunk):
            events += self._tell(piece)
        if chunk.finish_reason is not None:
            events += self._finish(length=chunk.finish_reason == "length")
        return events

    def last_events(self) -> list[bytes]:
        return [self._state_event(f"response.{self._status}")]

    def whole(self) -> bytes:
        return self.response().to_json()

    # -- beyond it ---------------------------------------------------------------------------------

    def begin(self) -> list[bytes]:
        """Return the events before any work; without this call they come with the first chunk.
        Idempotent."""
        if self._created:
            return []
        self._created = True
        events = [self._state_event("response.created")]
        if self._status == "queued":
            events.append(self._state_event("response.queued"))
        return events

    def response(self) -> ResponseObject:
        """Return the response in its current state."""
        incomplete = self._status == "incomplete"
        return self._base.model_copy(
            update={
                "status": self._status,
                "output": [item.item() for item in self._items],
                "error": self._error,
                "incomplete_details": IncompleteDetails(reason="max_output_tokens")
                if incomplete
                else None,
                "usage": None if self._status in _UNFINISHED else self._usage(),
                "completed_at": self._completed_at,
            }
        )

    def answer(self) -> Answer:
        return whole_answer(self._pieces)

    def failed(self, error: QuireError) -> list[bytes]:
        """Return the events of a failed response."""
        events = self._opening() + self._close("incomplete")
        self._error = ResponseError(code=_error_code(error), message=error.message)
        self._status = "failed"
        param = error.details.get("param")
        return [
            *events,
            self._writer.event(
                "error",
                code=error.code,
                message=error.message,
                param=param if isinstance(param, str) else None,
            ),
            self._state_event("response.failed"),
        ]

    def cancelled(self) -> list[bytes]:
        """Mark the response as cancelled by its client; its output so far is kept. There is no
        event for this end."""
        events = self._close("incomplete")
        self._status = "cancelled"
        return events

    # -- inside ------------------------------------------------------------------------------------

    def _parse(self, chunk: ChoiceChunk) -> list[Piece]:
        pieces = self._parser.feed(chunk.text)
        if chunk.finish_reason is not None:
            pieces += self._parser.finish()
        self._pieces += pieces
        if any(isinstance(piece, Reasoning) for piece in pieces):
            self._num_reasoning += len(chunk.token_ids)
        num_top = self._options.num_logprobs
        if num_top is not None and chunk.token_ids:
            scored = chat_logprobs(self._tokenizer, chunk.logprobs or (), num_top)
            self._pending_logprobs += scored.content or ()
        return pieces

    def _opening(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        events = self.begin()
        self._status = "in_progress"
        return [*events, self._state_event("response.in_progress")]

    def _tell(self, piece: Piece) -> list[bytes]:
        match piece:
            case TextPiece(text):
                events = self._switch_to(GrowingMessage)
                assert isinstance(self._open, GrowingMessage)
                if self._options.num_logprobs is None:
                    return [*events, self._open.add(text)]
                logprobs, self._pending_logprobs = self._pending_logprobs, []
                return [*events, self._open.add_scored(text, logprobs)]
            case Reasoning(text):
                events = self._switch_to(GrowingReasoning)
                self._pending_logprobs.clear()
                assert self._open is not None
                return [*events, self._open.add(text)]
            case CallStarted(_, call_id, name):
                call = GrowingCall(self._writer, len(self._items), self._ids, call_id, name)
                return self._begin(call)
            case CallArguments(_, text):
                self._pending_logprobs.clear()
                assert isinstance(self._open, GrowingCall)
                return [self._open.add(text)]

    def _switch_to(self, kind: type[GrowingMessage] | type[GrowingReasoning]) -> list[bytes]:
        if isinstance(self._open, kind):
            return []
        return self._begin(kind(self._writer, len(self._items), self._ids))

    def _begin(self, item: GrowingItem) -> list[bytes]:
        events = self._close("completed")
        self._items.append(item)
        self._open = item
        return events + item.open()

    def _close(self, status: ItemStatus) -> list[bytes]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        return item.close(status)

    def _finish(self, *, length: bool) -> list[bytes]:
        """Close the open item and the response. An empty answer becomes one empty message."""
        events = [] if self._items else self._switch_to(GrowingMessage)
        events += self._close("incomplete" if length else "completed")
        self._status = "incomplete" if length else "completed"
        self._completed_at = None if length else int(time.time())
        return events

    def _usage(self) -> ResponseUsage:
        num_prompt, num_output = self._options.num_prompt_tokens, len(self.token_ids)
        num_full = num_prompt // self._options.page_size * self._options.page_size
        return ResponseUsage(
            input_tokens=num_prompt,
            input_tokens_details=InputTokensDetails(
                cached_tokens=self._num_cached,
                cache_write_tokens=max(0, num_full - self._num_cached),
            ),
            output_tokens=num_output,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._num_reasoning),
            total_tokens=num_prompt + num_output,
        )

    def _state_event(self, kind: str) -> bytes:
        return self._writer.event(kind, response=self.response().model_dump())


def _error_code(error: QuireError) -> str:
    """Return one of the error codes that OpenAI's clients know."""
    status = status_of(error)
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if status == 400 else "server_error"
