"""Answers under a ``request_id``: each is generated once, and a client that asks again gets it from
its beginning, also while it is generated.

Owns what is kept of the answers, and their life without a client. Must not know what their bytes
mean, nor how they are generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.core.errors import AlreadyExists
from quire.core.ids import TenantId
from quire.server.answers.disconnects import raise_failure, while_connected
from quire.server.answers.write_limit import WriteLimit

RETURN_S = 30.0
"""An answer that has lost its last client ends after this time, unless one asks again."""

MAX_ANSWER_BYTES = 4 << 20
MAX_KEPT_BYTES = 64 << 20
"""Of all answers of all tenants together: the latest ones are kept."""

MAX_KEPT = 4096
_AHEAD_BYTES = 64 << 10
"""How far an answer that is not kept may be ahead of its slowest client."""

Begin = Callable[[Callable[[], None]], Awaitable[Response]]
"""Makes the response that generates. It calls the function that it gets when the answer is
complete."""

_Key = tuple[TenantId, str]


class KeptAnswers:
    """The answers of one application; belongs to its loop. An answer that fails is forgotten at
    once, so that the request may be tried again."""

    def __init__(self) -> None:
        self._answers: dict[_Key, KeptAnswer] = {}
        self._num_bytes = 0

    def answer(
        self,
        request: Request,
        key: _Key,
        asked: bytes,
        begin: Begin,
        write_timeout_s: float,
    ) -> Response:
        """Return the answer under ``key``, a tenant and its id of the request. ``begin`` is called
        if there is none yet. ``asked`` identifies the content of the request.

        Raises:
            AlreadyExists: the id was used for another request.
        """
        kept = self._answers.get(key)
        if kept is None:
            kept = self._answers[key] = KeptAnswer(asked, self._grown)
            task = asyncio.create_task(kept.generate(request.scope, begin))
            kept.task = task
            task.add_done_callback(lambda _: self._ended(key, kept))
        elif kept.asked != asked:
            raise AlreadyExists(
                f"request_id {key[1]!r} was used for another request: choose a new one",
                param="request_id",
            )
        return _Retold(kept, write_timeout_s)

    def check_invariants(self) -> None:
        assert self._num_bytes == sum(one.num_bytes for one in self._answers.values())
        assert self._num_bytes <= MAX_KEPT_BYTES + _AHEAD_BYTES * len(self._answers)

    def _grown(self, kept: KeptAnswer, num_bytes: int) -> None:
        if kept.is_forgotten:
            return
        self._num_bytes += num_bytes
        if num_bytes > 0:
            self._forget_oldest(0)
            if self._num_bytes > MAX_KEPT_BYTES or kept.num_bytes > MAX_ANSWER_BYTES:
                kept.is_whole = False  # those that run leave no room, or it is long itself

    def _ended(self, key: _Key, kept: KeptAnswer) -> None:
        del self._answers[key]
        if not kept.may_be_told_again:
            self._num_bytes -= kept.num_bytes
            kept.is_forgotten = True  # what its readers still read is counted no more
            return
        self._answers[key] = kept  # behind those that have ended before
        self._forget_oldest(1)

    def _forget_oldest(self, num_new: int) -> None:
        """Forget answers that have ended and have no reader, until the others fit."""
        while self._num_bytes > MAX_KEPT_BYTES or (num_new and len(self._answers) > MAX_KEPT):
            oldest = next((at for at, one in self._answers.items() if one.is_idle), None)
            if oldest is None:
                return
            self._num_bytes -= self._answers.pop(oldest).num_bytes


class KeptAnswer:
    """What was generated of an answer so far. ``is_whole``: from its beginning; otherwise what its
    readers have not read yet. ``on_growth`` is called with each change of ``num_bytes``."""

    task: asyncio.Task[None]

    def __init__(self, asked: bytes, on_growth: Callable[[KeptAnswer, int], None]) -> None:
        self.asked = asked
        self.num_bytes = 0
        self.is_whole = True
        self.is_forgotten = False
        self._is_complete = False
        self._on_growth = on_growth
        self._head: Message | None = None
        self._pieces: list[bytes] = []
        self._num_dropped = 0
        self._has_last = False
        self._places: dict[object, int] = {}
        self._changed = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def may_be_told_again(self) -> bool:
        """Whether an answer that has ended has not failed, and is kept from beginning to end."""
        failed = self.task.cancelled() or self.task.exception() is not None
        return self._is_complete and self._has_last and self.is_whole and not failed

    @property
    def is_idle(self) -> bool:
        return self.task.done() and not self._places

    # -- its generation ----------------------------------------------------------------------------

    async def generate(self, scope: Scope, begin: Begin) -> None:
        state = {name: one for name, one in scope["state"].items() if name != "send_body"}
        try:
            response = await begin(self._complete)
            await response({**scope, "state": state}, self._receive, self._send)
        finally:
            self._tell()

    def _complete(self) -> None:
        self._is_complete = True

    async def _receive(self) -> Message:
        await self._abandoned.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        piece: bytes = message.get("body", b"")
        self._has_last = not message.get("more_body", False)
        if piece:
            self._pieces.append(piece)
            self._grow(len(piece))
        self._tell()
        self._drop_read()
        while not self.is_whole and self.num_bytes > _AHEAD_BYTES:
            await self._changed.wait()

    def _grow(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._on_growth(self, num_bytes)

    def _drop_read(self) -> None:
        """Drop what all readers have, if no other one can come."""
        if self.is_whole or not self._places:
            return
        num_read = min(self._places.values()) - self._num_dropped
        if num_read > 0:
            gone = sum(map(len, self._pieces[:num_read]))
            del self._pieces[:num_read]
            self._num_dropped += num_read
            self._grow(-gone)
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- its readers -------------------------------------------------------------------------------

    def join(self, reader: object) -> None:
        """Let ``reader`` read from the beginning.

        Raises:
            AlreadyExists: the beginning is not kept.
        """
        if self._num_dropped:
            raise AlreadyExists(
                "the answer under this request_id still runs, and is too long to be sent again "
                "from its beginning: end its connection, and choose a new request_id",
                param="request_id",
            )
        self._places[reader] = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def leave(self, reader: object) -> None:
        del self._places[reader]
        if self._places:
            self._drop_read()  # it may have been the slowest
        elif not self.task.done():
            wait_s = RETURN_S if self.is_whole else 0.0
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._abandoned.set)

    async def head(self) -> Message | None:
        """Return the start of the answer; None if it has ended before. Raises its error if it has
        failed before."""
        while self._head is None:
            if self.task.done():
                return None if self.task.cancelled() else self.task.result()
            await self._next()
        return {**self._head, "headers": list(self._head["headers"])}  # middlewares add to them

    async def read(self, reader: object) -> bytes | None:
        """Return what follows of the answer for ``reader``, who has taken all that it was given;
        empty at the end, None if there is no end."""
        while (place := self._places[reader] - self._num_dropped) == len(self._pieces):
            if self._has_last:
                return b""
            if self.task.done():
                return None
            await self._next()
        found = b"".join(self._pieces[place:])
        self._places[reader] = self._num_dropped + len(self._pieces)
        self._drop_read()
        return found

    async def _next(self) -> None:
        """Return when something has changed, the end of the task included."""
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({changed, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()


class _Retold(Response):
    """Sends ``kept`` from its beginning to one client, with ``write_timeout_s`` for each write."""

    def __init__(self, kept: KeptAnswer, write_timeout_s: float) -> None:
        super().__init__()
        self._kept = kept
        self._writes = WriteLimit(write_timeout_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._kept.join(self)
        work = asyncio.create_task(self._deliver(scope, send))
        try:
            await while_connected(work, receive, writes=self._writes)
        finally:
            self._kept.leave(self)
        raise_failure(work)

    async def _deliver(self, scope: Scope, send: Send) -> None:
        head = await self._kept.head()
        if head is None:
            return
        with self._writes:
            await send(head)
        send_body: Send = scope.get("state", {}).get("send_body", send)
        while (piece := await self._kept.read(self)) is not None:
            with self._writes:
                await send_body(_body(piece))
            if not piece:
                return


def _body(piece: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": bool(piece)}
