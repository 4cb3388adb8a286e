"""Chats, messages, responses and completions that outlive their node: another node goes on after
the last token of each choice.

Owns what must be known to go on (the tokens, which the node sends in comments between the events)
and what of a stream may be passed on: the events of a chunk only with its tokens, so that no token
is delivered twice. Must not know what events mean, nor how the next engine is chosen.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import msgspec

from quire.cluster.passing.outliving import Continuation, OutlivingAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import CHAT, COMPLETIONS, RawHeaders, Request
from quire.core.exchange import CLUSTER_KEY_HEADER
from quire.server.answers.resuming.told_tokens import (
    COMMENT,
    ENGINE_LOST,
    TELLS_HEADER,
    PartialAnswer,
    ToldChunk,
    ToldTokens,
)
from quire.server.requests.strict_json import GENERATED_HEADER

SendOn = Callable[[Request], Awaitable[RoutedAnswer]]
"""Sends a request to another engine.

Raises ``QuireError``: no engine takes it.
"""

_RESPONSES = "/v1/responses"
_ENDS = {
    CHAT: (b"data: [DONE]",),
    COMPLETIONS: (b"data: [DONE]",),
    "/v1/messages": (b"event: message_stop", b"event: error"),
    _RESPONSES: (
        b"event: response.completed",
        b"event: response.incomplete",
        b"event: response.failed",
    ),
}
"""How the last event of each stream begins, for the streams that can go on."""

_SEED_BITS = 62
_STAYS = "conversation"
"""A response with this field moves only if its node is lost: its answer belongs to the
conversation, which no other node has."""

_DATA = b"\ndata: "
_OWN = {name.encode() for name in (TELLS_HEADER, GENERATED_HEADER, CLUSTER_KEY_HEADER)}


def retold(request: Request, cluster_key: str) -> Request:
    """Return ``request`` so that its answer contains what is needed to go on elsewhere, if it is a
    chat, message or response, or a completion that is not resumable by itself; else ``request``."""
    if request.path not in _ENDS or request.is_resumable:
        return request
    if not _can_go_on(request.path, request.fields):
        return request
    asked = _with(request, request.body, [(TELLS_HEADER, "1"), (CLUSTER_KEY_HEADER, cluster_key)])
    asked.is_resumable = True
    return asked


def begun_again(request: Request, cluster_key: str, key: str, created: int) -> Request:
    """Return ``request`` so that another node answers it under the id that the answer had
    (``key``): from the beginning, because no client has received any of it."""
    nothing = msgspec.msgpack.encode(PartialAnswer(key, created, secrets.randbits(_SEED_BITS), []))
    own = [(CLUSTER_KEY_HEADER, cluster_key), (GENERATED_HEADER, str(len(nothing)))]
    return _with(request, nothing + request.body, own)


def _can_go_on(path: str, fields: Mapping[str, Any]) -> bool:
    """Return whether another node can generate the rest."""
    return path != _RESPONSES or not fields.get("background")


def _with(request: Request, body: bytes, own: list[tuple[str, str]]) -> Request:
    headers: RawHeaders = [
        *(pair for pair in request.headers if pair[0] not in _OWN),
        *((name.encode(), value.encode()) for name, value in own),
    ]
    return Request(request.method, request.target, headers, body, request.request_id)


class RetoldAnswer(OutlivingAnswer):
    """The answer to ``request``: the stream ``answer``, then the streams that continue it."""

    def __init__(self, answer: RoutedAnswer, request: Request, send_on: SendOn) -> None:
        super().__init__(answer, request)
        self._send_on = send_on
        self._waiting: list[bytes] = []
        self._told = ToldTokens()
        self._ends = _ENDS[request.path]
        self._num_passed = 0
        """Number of events that the client has, or is about to have."""

    @property
    def prompt(self) -> list[int] | None:
        first = self._told.first
        return list(first.prompt) or None if first is not None else None

    @property
    def generated(self) -> list[Sequence[int]] | None:
        if self._is_over or self._told.first is None or self._request.fields.get(_STAYS):
            return None
        return self._told.running()

    def _events(self, piece: bytes) -> bytes:
        passed: list[bytes] = []
        for block in self._whole_events(piece):
            if block.startswith(COMMENT):
                self._told.add(msgspec.json.decode(block[len(COMMENT) :], type=ToldChunk))
                passed += self._passed()
                continue
            if block == ENGINE_LOST:
                self._has_lost_engine = True
                break
            self._waiting.append(block + b"\n\n")
            if block.startswith(self._ends):
                self._is_over = True
                passed += self._passed()
        return b"".join(passed)

    def _passed(self) -> list[bytes]:
        """Return the events that wait, to be passed on. Events of a response are numbered; later
        streams continue the numbers of the first."""
        waiting, self._waiting = self._waiting, []
        if self._num_resumed and self._request.path == _RESPONSES:
            numbers = count(self._num_passed)
            waiting = [_numbered(event, next(numbers)) for event in waiting]
        self._num_passed += len(waiting)
        return waiting

    def _ending(self) -> bytes:
        """Return nothing: if only the end was lost, another node sends it."""
        return b""

    def _continuation(self) -> Continuation | None:
        generated = self._told.packed()
        if generated is None:
            return None
        keys = [pair for pair in self._request.headers if pair[0] == CLUSTER_KEY_HEADER.encode()]
        own = [(name.decode(), value.decode()) for name, value in keys]
        again = _with(
            self._request,
            generated + self._request.body,
            [*own, (TELLS_HEADER, "1"), (GENERATED_HEADER, str(len(generated)))],
        )
        again.work, again.prefers = self._request.work, self._request.prefers
        self._request.prefers = None
        self._waiting.clear()
        return Continuation(partial(self._send_on, again), self._told.num_tokens)


def _numbered(event: bytes, number: int) -> bytes:
    name, found, text = event.partition(_DATA)
    if not found:
        return event
    body = msgspec.json.decode(text, type=dict[str, Any])
    return name + _DATA + msgspec.json.encode(body | {"sequence_number": number}) + b"\n\n"
