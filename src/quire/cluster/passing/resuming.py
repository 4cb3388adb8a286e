"""Streamed completions that outlive their engine: another one goes on behind the last token.

Owns what must be known to go on (the tokens of prompt and answer, which the events tell) and the
seam between two streams. Must not know how the next engine is chosen.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from quire.cluster.nodes.connection import Sink
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost, QuireError

logger = logging.getLogger(__name__)

GoOn = Callable[[Request, list[int], int], Awaitable[Answer]]
"""Generates at another engine: the prompt with what was generated of it, and how much that is.

Raises ``QuireError``: no engine can.
"""

MAX_KEPT_BYTES = 4 << 20
"""Of a stream's events; a longer one can no longer go on elsewhere."""

_MAX_RESUMPTIONS = 8
_DATA, _DONE = b"data: ", b"data: [DONE]"
_LOST = b'"code":"engine_lost"'
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


class ResumingAnswer:
    """The stream ``answer`` to ``request``, and those of other engines behind it."""

    def __init__(self, answer: Answer, request: Request, go_on: GoOn) -> None:
        self.engine = answer.engine
        self.head = answer.head
        self._answer = answer
        self._request = request
        self._go_on = go_on
        self._held = b""
        self._kept: list[bytes] = []
        self._num_kept_bytes = 0
        self._num_resumed = 0
        self._num_before = 0
        self._is_done = False
        self._first: dict[str, Any] = {}

    async def read(self) -> bytes:
        while not self._is_done:
            try:
                piece = await self._answer.read()
                events = self._events(piece)
                if not piece and not self._is_done:
                    raise EngineLost(
                        f"node {self._answer.engine} has ended a stream before its end"
                    )
            except EngineLost as error:
                await self._resume(error)
                if self._is_done:  # nothing but its end was lost
                    return _DONE + b"\n\n"
                continue
            if events:
                return events
        return b""

    def pass_to(self, sink: Sink) -> None:
        """All pieces are read: each is looked at."""

    def close(self) -> None:
        self._answer.close()

    @property
    def request(self) -> Request:
        return self._request

    @property
    def at(self) -> str:
        return self._answer.engine

    @property
    def generated(self) -> list[int] | None:
        """What has been told so far."""
        if self._is_done or self._num_kept_bytes > MAX_KEPT_BYTES:
            return None
        found = [choice for body in self._told() for choice in body.get("choices", ())]
        return [token for choice in found for token in choice.get("token_ids", ())]

    def leave(self) -> None:
        """Cut the present stream: it goes on at another engine."""
        self._answer.close()

    def _told(self) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(event[len(_DATA) :], type=dict[str, Any])
            for event in self._kept
            if event.startswith(_DATA) and event != _DONE
        ]

    def _events(self, piece: bytes) -> bytes:
        """The whole events of what has arrived, as the client is to see them.

        Raises:
            EngineLost: the node says that its engine was lost.
        """
        *whole, self._held = (self._held + piece).split(b"\n\n")
        shown = []
        for event in whole:
            if event.startswith(b'data: {"error"') and _LOST in event:
                raise EngineLost(f"node {self._answer.engine} has lost its engine")
            self._is_done = self._is_done or event == _DONE
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

    async def _resume(self, error: EngineLost) -> None:
        """Go on elsewhere, or raise ``error``."""
        told = self._told()
        choices = [choice for body in told for choice in body.get("choices", ())]
        is_over = any(choice.get("finish_reason") for choice in choices)
        if is_over and not self._request.fields.get("stream_options"):
            self._is_done = True
            return
        prompt = choices[0].get("prompt_token_ids") if choices else None
        if (
            prompt is None
            or is_over
            or self._num_kept_bytes > MAX_KEPT_BYTES
            or self._num_resumed >= _MAX_RESUMPTIONS
        ):
            raise error
        generated = [token for choice in choices for token in choice.get("token_ids", ())]
        self._first = told[0]
        self._answer.close()
        try:
            following = await self._go_on(self._request, [*prompt, *generated], len(generated))
        except QuireError as exc:
            logger.warning("request %s cannot go on: %s", self._request.request_id, exc.message)
            raise error from exc
        logger.warning(
            "request %s goes on at %s behind %d tokens: %s",
            self._request.request_id,
            following.engine,
            len(generated),
            error.message,
        )
        self._answer, self._held = following, b""
        self._num_before = len(generated)
        self._num_resumed += 1
