"""One HTTP/1.1 connection to a node, which carries one exchange at a time.

Owns the bytes of the exchange: what is written, the answer's head, the pieces of its body as they
arrive, and how much of them may wait for their reader. Must not know which connection is used for
what: ``pool`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from typing import cast

import httptools

from quire.core.errors import EngineLost

Sink = Callable[[bytes], bool]
"""Takes a piece at once, or returns False: then it waits for ``read``. An empty piece asks whether
it would take one."""

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 64 << 10
MAX_WAITING_BYTES = 256 << 10
"""Of an answer whose reader is slow; beyond it the node has to wait."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """``headers`` have lower-case names, in the node's order."""

    status: int
    headers: Headers

    def get(self, name: bytes) -> bytes:
        """The value of the first header of that name, or nothing."""
        return next((value for key, value in self.headers if key == name), b"")


class NodeConnection(asyncio.Protocol):
    """``node`` is a name for messages. One exchange is ``send``, ``head``, then ``read`` until it
    returns nothing; ``is_reusable`` says whether another may follow.

    Every method that waits raises ``EngineLost`` when the connection ends before the answer does.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._transport: asyncio.Transport | None = None
        self._lost: EngineLost | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._begin(is_head=False)
        self._is_complete = True
        self.has_received = False
        """Whether any byte of the present answer has come."""
        self.was_failed = False
        self.active_s = 0.0
        """When the request was sent, or the last bytes came."""

    def _begin(self, *, is_head: bool) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._num_head_bytes = 0
        self._head: AnswerHead | None = None
        self._pieces: list[bytes] = []
        self._num_waiting = 0
        self._is_complete = False
        self._is_paused = False
        self._is_kept_alive = False
        self._is_head = is_head
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self.has_received = False

    async def send(
        self, head: bytes, body: bytes | AsyncIterable[bytes], *, is_head: bool = False
    ) -> None:
        """Write a request. ``is_head``: its answer has no body, whatever its headers say."""
        self._begin(is_head=is_head)
        self._loop = asyncio.get_running_loop()
        self.active_s = self._loop.time()
        transport = self._open()
        if isinstance(body, bytes):
            transport.write(head + body if body else head)
            return
        transport.write(head)
        async for piece in body:
            await self._may_write.wait()
            self._open().write(piece)

    async def head(self) -> AnswerHead:
        while self._head is None:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """What has arrived of the body since the last call, at least a byte; nothing at its
        end."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._wait()
        pieces, self._pieces, self._num_waiting = self._pieces, [], 0
        if self._is_paused:
            self._is_paused = False
            self._open().resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pass_to(self, sink: Sink) -> None:
        """While a ``read`` waits, give pieces to ``sink`` as they arrive instead of waking it."""
        self._sink = sink

    @property
    def is_reusable(self) -> bool:
        return self._is_complete and self._is_kept_alive and self.is_open

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def fail(self, error: EngineLost) -> None:
        """End the exchange with ``error``, and the connection."""
        self._lost = self._lost or error
        self.was_failed = True
        self._wake()
        self.close()

    def close(self) -> None:
        """Close at once: for a node, that is how a client says that it wants no more."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is None:
            reason = "" if exc is None else f" ({exc})"
            self._lost = EngineLost(f"node {self._node} has closed the connection{reason}")
        self._may_write.set()
        if not self._is_complete and self._head is not None and self._ends_with_connection():
            self._is_complete = exc is None
        self._wake()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # nobody has asked for this
            self.close()
            return
        self.has_received = True
        self.active_s = self._loop.time()
        if self._head is None:
            self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self.fail(EngineLost(f"node {self._node} does not answer in HTTP/1.1 ({exc})"))
            return
        if self._head is None and self._num_head_bytes > MAX_HEAD_BYTES:
            self.fail(
                EngineLost(
                    f"node {self._node} answers with a head of more than {MAX_HEAD_BYTES} bytes"
                )
            )

    # -- httptools ---------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # the answer proper follows
            self._headers = []
            return
        self._head = AnswerHead(status, self._headers)
        self._is_kept_alive = self._parser.should_keep_alive() and not self._is_head
        self._is_complete = self._is_head
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self._is_head:
            return
        # a read that has been woken has pieces that come first
        if self._sink is not None and self._is_awaited and self._sink(body):
            return
        self._pieces.append(body)
        self._num_waiting += len(body)
        if self._num_waiting > MAX_WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self._open().pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._is_complete = True
            self._wake()

    # -- waiting -----------------------------------------------------------------------------------

    async def _wait(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    @property
    def _is_awaited(self) -> bool:
        return self._waiter is not None and not self._waiter.done()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _open(self) -> asyncio.Transport:
        if self._lost is not None:
            raise self._lost
        assert self._transport is not None, "used before it was connected"
        return self._transport

    def _ends_with_connection(self) -> bool:
        assert self._head is not None
        return not (self._head.get(b"content-length") or self._head.get(b"transfer-encoding"))
