"""Streamed chats and messages that outlive their node: another one goes on behind the last token.

Owns what must be known to go on (the tokens, which the node tells in comments between the events)
and what of a stream may be passed on: the events of a chunk only with its tokens, so that nothing
is told twice. Must not know what events say, nor how the next engine is chosen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from quire.cluster.passing.outliving import LOST, Continuation, OutlivingAnswer
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.request import CHAT, RawHeaders, Request
from quire.core.exchange import CLUSTER_KEY_HEADER
from quire.server.going_on import COMMENT, GENERATED_HEADER, TELLS_HEADER, Told, packed

SendOn = Callable[[Request], Awaitable[Answer]]
"""Sends a request to another engine.

Raises ``QuireError``: no engine takes it.
"""

_RETOLD = (CHAT, "/v1/messages")
_OWN = {name.encode() for name in (TELLS_HEADER, GENERATED_HEADER, CLUSTER_KEY_HEADER)}
_ENDS = (b"data: [DONE]", b"event: message_stop", b"event: error")


def retold(request: Request, cluster_key: str) -> Request:
    """``request``, asking for what is needed to go on elsewhere, if it is a streamed chat of one
    choice; else ``request``."""
    if request.path not in _RETOLD or not request.streams:
        return request
    if request.fields.get("n") not in (None, 1):
        return request
    asked = _with(request, request.body, [(TELLS_HEADER, "1"), (CLUSTER_KEY_HEADER, cluster_key)])
    asked.is_resumable = True
    return asked


def _with(request: Request, body: bytes, own: list[tuple[str, str]]) -> Request:
    headers: RawHeaders = [
        *(pair for pair in request.headers if pair[0] not in _OWN),
        *((name.encode(), value.encode()) for name, value in own),
    ]
    return Request(request.method, request.target, headers, body, request.request_id)


class RetoldAnswer(OutlivingAnswer):
    """The stream ``answer`` to the chat or message ``request``, and those behind it."""

    def __init__(self, answer: Answer, request: Request, send_on: SendOn) -> None:
        super().__init__(answer, request)
        self._send_on = send_on
        self._waiting: list[bytes] = []
        self._first: Told | None = None
        self._tokens: list[int] = []

    @property
    def generated(self) -> list[int] | None:
        return None if self._is_over or self._first is None else self._tokens

    def _events(self, piece: bytes) -> bytes:
        passed: list[bytes] = []
        for block in self._whole_events(piece):
            if block.startswith(COMMENT):
                told = msgspec.json.decode(block[len(COMMENT) :], type=Told)
                self._first = self._first or told
                self._tokens += told.tokens
                passed += self._waiting
                self._waiting.clear()
                continue
            if LOST in block and (b'{"error"' in block or block.startswith(b"event: error")):
                raise self._lost()
            self._waiting.append(block + b"\n\n")
            if block.startswith(_ENDS):
                self._is_over = True
                passed += self._waiting
                self._waiting.clear()
        return b"".join(passed)

    def _ending(self) -> bytes:
        """Nothing: where only the end was lost, another node tells it."""
        return b""

    def _continuation(self) -> Continuation | None:
        first = self._first
        generated = None if first is None else packed(first, self._tokens)
        if generated is None:
            return None
        keys = [pair for pair in self._request.headers if pair[0] == CLUSTER_KEY_HEADER.encode()]
        own = [(name.decode(), value.decode()) for name, value in keys]
        again = _with(
            self._request,
            self._request.body,
            [*own, (TELLS_HEADER, "1"), (GENERATED_HEADER, generated)],
        )
        again.work, again.prefers = self._request.work, self._request.prefers
        self._waiting.clear()
        return Continuation(partial(self._send_on, again), len(self._tokens))
