"""Streamed completions that outlive their engine: another engine goes on after the last token.

Owns what must be known to go on (the tokens of prompt and answer, which the events contain) and how
the events of a later stream become those of the first. Must not know how the next engine is chosen.
"""

from __future__ import annotations

import re
import secrets
from array import array
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from quire.cluster.passing.outliving import Continuation, OutlivingAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.server.answers.resuming.told_tokens import MAX_TOKENS

GoOn = Callable[[Request, list[int], int], Awaitable[RoutedAnswer]]
"""Generates at another engine. Takes the request, the prompt with the tokens generated so far, and
the number of the latter.

Raises ``QuireError``: no engine can.
"""

_DATA, _DONE = b"data: ", b"data: [DONE]"
_LOST = re.compile(rb'data: \{"error":.*"code": ?"engine_lost"', re.DOTALL)
"""The event by which a node reports that it has lost its engine; in the message of another error
the quotes would be escaped."""
_TOKENS = re.compile(rb',"token_ids":\[[0-9,]*\](?:,"prompt_token_ids":\[[0-9,]*\])?')
"""The token fields between other fields of an event. In a generated text their quotes would be
escaped."""


class _Choice(msgspec.Struct):
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Told(msgspec.Struct):
    """The fields of an event that are needed to go on."""

    id: str = ""
    created: int = 0
    choices: list[_Choice] = []


def resumable(request: Request) -> Request:
    """Return ``request`` so that its events contain what is needed to go on elsewhere, if it is a
    streamed completion of one choice whose events do not depend on where they began; else
    ``request``."""
    if not request.streams or request.prompt is None:
        return request
    fields = request.fields
    if fields.get("n") not in (None, 1) or fields.get("echo") or fields.get("logprobs") is not None:
        return request
    body = {"seed": secrets.randbits(62), **fields, "return_token_ids": True}
    if body["seed"] is None:
        body["seed"] = secrets.randbits(62)
    asked = Request(
        request.method,
        request.target,
        request.headers,
        msgspec.json.encode(body),
        request.request_id,
    )
    asked.tells_tokens = bool(fields.get("return_token_ids"))
    asked.is_resumable = True
    return asked


class ResumingAnswer(OutlivingAnswer):
    """The answer to the completion ``request``: the stream ``answer``, then the streams that
    continue it. Keeps the first event and the tokens of all events, four bytes each."""

    def __init__(self, answer: RoutedAnswer, request: Request, go_on: GoOn) -> None:
        super().__init__(answer, request)
        self._ask = go_on
        self._first: _Told | None = None
        self._prompt: list[int] | None = None
        self._tokens: array[int] = array("i")
        self._num_tokens = 0
        self._num_before = 0
        self._has_finished = False

    @property
    def prompt(self) -> list[int] | None:
        return self._prompt

    @property
    def generated(self) -> list[Sequence[int]] | None:
        return None if self._is_over or self._num_tokens > MAX_TOKENS else [self._tokens]

    def _events(self, piece: bytes) -> bytes:
        shown = []
        for event in self._whole_events(piece):
            if _LOST.match(event):
                self._has_lost_engine = True
                break
            self._is_over = self._is_over or event == _DONE
            if event.startswith(_DATA) and event != _DONE:
                event = self._noted(event)
            shown.append(event + b"\n\n")
        return b"".join(shown)

    def _noted(self, event: bytes) -> bytes:
        """Note what ``event`` contains; return it as the client is to receive it."""
        told = msgspec.json.decode(event[len(_DATA) :], type=_Told)
        for choice in told.choices:
            self._num_tokens += len(choice.token_ids)
            if self._num_tokens <= MAX_TOKENS:
                self._tokens.extend(choice.token_ids)
            self._prompt = self._prompt or choice.prompt_token_ids
            self._has_finished = self._has_finished or bool(choice.finish_reason)
        self._first = self._first or told
        if self._num_resumed:
            event = self._rewritten(event, self._first)
        return event if self._request.tells_tokens else _TOKENS.sub(b"", event)

    def _rewritten(self, event: bytes, first: _Told) -> bytes:
        """Return an event of a later stream as an event of the first stream."""
        body = msgspec.json.decode(event[len(_DATA) :], type=dict[str, Any])
        if first.id:
            body["id"] = first.id
        if first.created:
            body["created"] = first.created
        for choice in body.get("choices", ()):
            choice.pop("prompt_token_ids", None)
        usage = body.get("usage")
        if usage:  # the later engine counts earlier tokens of the answer as prompt
            usage["prompt_tokens"] -= self._num_before
            usage["completion_tokens"] += self._num_before
            if cached := usage.get("prompt_tokens_details"):
                cached["cached_tokens"] = min(cached["cached_tokens"], usage["prompt_tokens"])
        return _DATA + msgspec.json.encode(body)

    def _ending(self) -> bytes:
        lacks_usage = bool(self._request.fields.get("stream_options"))
        return _DONE + b"\n\n" if self._has_finished and not lacks_usage else b""

    def _continuation(self) -> Continuation | None:
        if self._prompt is None or self._has_finished or self._num_tokens > MAX_TOKENS:
            return None
        self._num_before = len(self._tokens)
        tokens = [*self._prompt, *self._tokens]
        ask = partial(self._ask, self._request, tokens, self._num_before)
        return Continuation(ask, self._num_before)
