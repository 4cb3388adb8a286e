"""Streamed chats and messages that outlive their node: another one goes on behind the last token.

Owns what must be known to go on (the tokens, which the node tells in comments between the events)
and what of a stream may be passed on: the events of a chunk only with its tokens, so that nothing
is told twice. Must not know what events say, nor how the next engine is chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from quire.cluster.nodes.connection import Sink
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.request import CHAT, RawHeaders, Request
from quire.core.errors import EngineLost, QuireError
from quire.core.exchange import CLUSTER_KEY_HEADER
from quire.server.going_on import COMMENT, GENERATED_HEADER, TELLS_HEADER, Told, packed

logger = logging.getLogger(__name__)

SendOn = Callable[[Request], Awaitable[Answer]]
"""Sends a request to another engine.

Raises ``QuireError``: no engine takes it.
"""

_RETOLD = (CHAT, "/v1/messages")
_OWN = {name.encode() for name in (TELLS_HEADER, GENERATED_HEADER, CLUSTER_KEY_HEADER)}
_LOST = b'"code":"engine_lost"'
_ENDS = (b"data: [DONE]", b"event: message_stop", b"event: error")
_MAX_RESUMPTIONS = 8


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


class RetoldAnswer:
    """The stream ``answer`` to ``request``, and those of other engines behind it."""

    def __init__(self, answer: Answer, request: Request, send_on: SendOn) -> None:
        self.engine = answer.engine
        self.head = answer.head
        self._answer = answer
        self._request = request
        self._send_on = send_on
        self._held = b""
        self._waiting: list[bytes] = []
        self._first: Told | None = None
        self._tokens: list[int] = []
        self._num_resumed = 0
        self._is_over = False

    async def read(self) -> bytes:
        while not self._is_over:
            try:
                piece = await self._answer.read()
                if not piece:
                    raise EngineLost(
                        f"node {self._answer.engine} has ended a stream before its end"
                    )
                events = self._events(piece)
            except EngineLost as error:
                await self._resume(error)
                continue
            if events:
                return events
        with suppress(EngineLost):  # read to its end, its connection serves others
            while await self._answer.read():
                pass
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
        return None if self._is_over or self._first is None else self._tokens

    def leave(self) -> None:
        """Cut the present stream: it goes on at another engine."""
        self._answer.close()

    def _events(self, piece: bytes) -> bytes:
        """The events that may be passed on, now that ``piece`` is here.

        Raises:
            EngineLost: the node says that its engine was lost.
        """
        *blocks, self._held = (self._held + piece).split(b"\n\n")
        passed: list[bytes] = []
        for block in blocks:
            if block.startswith(COMMENT):
                told = msgspec.json.decode(block[len(COMMENT) :], type=Told)
                self._first = self._first or told
                self._tokens += told.tokens
                passed += self._waiting
                self._waiting.clear()
                continue
            if _LOST in block and (b'{"error"' in block or block.startswith(b"event: error")):
                raise EngineLost(f"node {self._answer.engine} has lost its engine")
            self._waiting.append(block + b"\n\n")
            if block.startswith(_ENDS):
                self._is_over = True
                passed += self._waiting
                self._waiting.clear()
        return b"".join(passed)

    async def _resume(self, error: EngineLost) -> None:
        """Go on elsewhere, or raise ``error``."""
        first = self._first
        generated = None if first is None else packed(first, self._tokens)
        if generated is None or self._num_resumed >= _MAX_RESUMPTIONS:
            raise error
        keys = [pair for pair in self._request.headers if pair[0] == CLUSTER_KEY_HEADER.encode()]
        own = [(name.decode(), value.decode()) for name, value in keys]
        again = _with(
            self._request,
            self._request.body,
            [*own, (TELLS_HEADER, "1"), (GENERATED_HEADER, generated)],
        )
        again.work, again.prefers = self._request.work, self._request.prefers
        self._answer.close()
        try:
            following = await self._send_on(again)
        except QuireError as exc:
            logger.warning("request %s cannot go on: %s", self._request.request_id, exc.message)
            raise error from exc
        logger.warning(
            "request %s goes on at %s behind %d tokens: %s",
            self._request.request_id,
            following.engine,
            len(self._tokens),
            error.message,
        )
        self._answer, self._held, self._num_resumed = following, b"", self._num_resumed + 1
        self._waiting.clear()
