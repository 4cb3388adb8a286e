"""Streamed completions that outlive their engine: another one goes on behind the last token.

Owns what must be known to go on (the tokens of prompt and answer, which the events tell) and how
the events of a later stream become those of the first. Must not know how the next engine is chosen.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from quire.cluster.passing.outliving import LOST, Continuation, OutlivingAnswer
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.request import Request

GoOn = Callable[[Request, list[int], int], Awaitable[Answer]]
"""Generates at another engine: the prompt with what was generated of it, and how much that is.

Raises ``QuireError``: no engine can.
"""

MAX_KEPT_BYTES = 4 << 20
"""Of a stream's events; a longer one can no longer go on elsewhere."""

_DATA, _DONE = b"data: ", b"data: [DONE]"
_TOKENS = re.compile(rb',"token_ids":\[[0-9,]*\](?:,"prompt_token_ids":\[[0-9,]*\])?')
"""Between other fields. In a text of the answer its quotes would be escaped."""


def resumable(request: Request) -> Request:
    """``request``, asking for what is needed to go on elsewhere, if it is a streamed completion of
    one choice whose events tell nothing that depends on where they began; else ``request``."""
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
    """The stream ``answer`` to the completion ``request``, and those behind it."""

    def __init__(self, answer: Answer, request: Request, go_on: GoOn) -> None:
        super().__init__(answer, request)
        self._ask = go_on
        self._kept: list[bytes] = []
        self._num_kept_bytes = 0
        self._num_before = 0
        self._first: dict[str, Any] = {}

    @property
    def prompt(self) -> list[int] | None:
        choices = self._choices()
        return choices[0].get("prompt_token_ids") if choices else None

    @property
    def generated(self) -> list[int] | None:
        if self._is_over or self._num_kept_bytes > MAX_KEPT_BYTES:
            return None
        return [token for choice in self._choices() for token in choice.get("token_ids", ())]

    def _told(self) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(event[len(_DATA) :], type=dict[str, Any])
            for event in self._kept
            if event.startswith(_DATA) and event != _DONE
        ]

    def _choices(self) -> list[dict[str, Any]]:
        return [choice for body in self._told() for choice in body.get("choices", ())]

    def _events(self, piece: bytes) -> bytes:
        shown = []
        for event in self._whole_events(piece):
            if event.startswith(b'data: {"error"') and LOST in event:
                raise self._lost()
            self._is_over = self._is_over or event == _DONE
            shown.append(self._shown(event) + b"\n\n")
            if self._num_kept_bytes <= MAX_KEPT_BYTES:
                self._kept.append(event)
                self._num_kept_bytes += len(event)
        return b"".join(shown)

    def _shown(self, event: bytes) -> bytes:
        if self._num_resumed and event.startswith(_DATA) and event != _DONE:
            event = self._rewritten(event)
        return event if self._request.tells_tokens else _TOKENS.sub(b"", event)

    def _rewritten(self, event: bytes) -> bytes:
        """An event of a later stream as one of the first."""
        body = msgspec.json.decode(event[len(_DATA) :], type=dict[str, Any])
        body |= {name: self._first[name] for name in ("id", "created") if name in self._first}
        for choice in body.get("choices", ()):
            choice.pop("prompt_token_ids", None)
        usage = body.get("usage")
        if usage:  # what was generated before counts as prompt there
            usage["prompt_tokens"] -= self._num_before
            usage["completion_tokens"] += self._num_before
            if cached := usage.get("prompt_tokens_details"):
                cached["cached_tokens"] = min(cached["cached_tokens"], usage["prompt_tokens"])
        return _DATA + msgspec.json.encode(body)

    def _has_finished(self) -> bool:
        return any(choice.get("finish_reason") for choice in self._choices())

    def _ending(self) -> bytes:
        lacks_usage = bool(self._request.fields.get("stream_options"))
        return _DONE + b"\n\n" if self._has_finished() and not lacks_usage else b""

    def _continuation(self) -> Continuation | None:
        choices = self._choices()
        prompt = choices[0].get("prompt_token_ids") if choices else None
        if prompt is None or self._has_finished() or self._num_kept_bytes > MAX_KEPT_BYTES:
            return None
        generated = [token for choice in choices for token in choice.get("token_ids", ())]
        self._first = self._told()[0]
        self._num_before = len(generated)
        ask = partial(self._ask, self._request, [*prompt, *generated], len(generated))
        return Continuation(ask, len(generated))
