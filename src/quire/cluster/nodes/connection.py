"""One HTTP/1.1 connection to a node, which carries one exchange at a time.

Owns the bytes of the exchange: what is written, the answer's head, the pieces of its body as they
arrive, and how much of them may wait for their reader. The pieces of a stream may arrive over a
lane of the node's channel; those that arrive over the connection itself come after them. Must not
know which connection is used for what: ``pool`` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from typing import cast

import httptools

from quire.cluster.nodes.lane import Lane
from quire.core.errors import EngineLost
from quire.server.microserving.channel_frames import CHANNEL_HEADER

logger = logging.getLogger(__name__)

Sink = Callable[[bytes], bool]
"""Takes a piece at once and returns True, or returns False: then the piece waits for ``read``. An
empty piece asks whether the sink would take one."""

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 64 << 10
MAX_WAITING_BYTES = 256 << 10
"""The most bytes that wait for a slow reader; beyond it the node has to wait."""

_MAX_LANE_BYTES = 4 * MAX_WAITING_BYTES
"""The most bytes that wait of a lane: the node needs time to take the stream out of the channel."""

_CHANNEL_HEADER = CHANNEL_HEADER.encode()


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Status and headers of an answer. ``headers`` have lower-case names, in the node's order."""

    status: int
    headers: Headers

    def get(self, name: bytes) -> bytes:
        """Return the value of the first header of that name, or nothing."""
        return next((value for key, value in self.headers if key == name), b"")


class NodeConnection(asyncio.Protocol):
    """A connection that carries one exchange at a time: ``send``, ``head``, then ``read`` until it
    returns nothing; ``is_reusable`` says whether another may follow. ``node`` is a name for
    messages.

    Every method that waits raises ``EngineLost`` when the connection ends before the answer does.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._transport: asyncio.Transport | None = None
        self._lost: EngineLost | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._lane: Lane | None = None
        self._begin(is_head=False)
        self._is_complete = True
        self.has_received = False
        """Whether any byte of the present answer has come."""
        self.was_failed = False
        self.active_s = 0.0
        """When the request was sent, or the last bytes arrived."""

    def _begin(self, *, is_head: bool) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._num_head_bytes = 0
        self._head: AnswerHead | None = None
        self._pieces: list[bytes] = []
        self._num_waiting = 0
        self._is_complete = False
        self._is_sent = False
        self._is_paused = False
        self._is_kept_alive = False
        self._is_head = is_head
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._is_over_lane = False
        self._is_leaving = False
        self._lane_is_lost = False
        self._behind: list[bytes] = []
        """What the connection has brought of an answer whose lane still brings earlier pieces."""
        self._num_behind = 0
        self._is_whole_behind = False
        self.has_received = False

    async def send(
        self,
        head: bytes,
        body: bytes | AsyncIterable[bytes],
        *,
        is_head: bool = False,
        lane: Lane | None = None,
    ) -> None:
        """Write a request. ``is_head``: its answer has no body, whatever its headers say. ``lane``:
        the lane over which the pieces of the answer may arrive."""
        self._begin(is_head=is_head)
        self._loop = asyncio.get_running_loop()
        self.active_s = self._loop.time()
        transport = self._open()
        if lane is not None:
            self._lane = lane
            lane.open(self)
        if isinstance(body, bytes):
            transport.write(head + body if body else head)
            self._is_sent = True
            return
        transport.write(head)
        async for piece in body:
            await self._may_write.wait()
            if self._is_complete:  # the node has refused it, and would read the rest to drop it
                return
            self._open().write(piece)
        self._is_sent = True

    async def head(self) -> AnswerHead:
        while self._head is None:
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """Return what has arrived of the body since the last call, at least one byte; nothing at
        the end of the body."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._wait()
        pieces, self._pieces, self._num_waiting = self._pieces, [], 0
        if self._is_paused and self._num_behind <= MAX_WAITING_BYTES:
            self._is_paused = False
            self._open().resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pass_to(self, sink: Sink) -> None:
        """While a ``read`` waits, give pieces to ``sink`` as they arrive instead of waking it."""
        self._sink = sink

    @property
    def is_reusable(self) -> bool:
        """Whether another exchange may follow. Not behind half a request: the node takes what comes
        for the rest of it, even if it has answered. Nor while a reader of this one waits."""
        is_over = self._is_complete and self._is_sent and self._waiter is None
        return is_over and self._is_kept_alive and self.is_open

    def unread(self) -> bytes:
        """Return what has arrived of the body and was not read."""
        return b"".join(self._pieces)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def fail(self, error: EngineLost) -> None:
        """End the exchange with ``error``, and close the connection."""
        self._lost = self._lost or error
        self.was_failed = True
        self._wake()
        self.close()
        self.close_lane()

    def close(self) -> None:
        """Close at once, which cancels a running request at the node."""
        if self._transport is not None:
            self._transport.abort()

    def close_lane(self) -> None:
        """Give up the lane, if there is one: the exchange is over, or does not use it."""
        lane, self._lane = self._lane, None
        self._is_over_lane = False
        if lane is not None:
            lane.close()

    # -- its lane ----------------------------------------------------------------------------------

    def take_from_lane(self, piece: bytes) -> None:
        self.has_received = True
        self.active_s = self._loop.time()
        try:
            self._take(piece)
        except Exception as exc:  # raised by the sink: the other streams of the channel must go on
            logger.exception("node %s: a piece of an answer cannot be passed on", self._node)
            self.fail(EngineLost(f"node {self._node} tells what cannot be passed on ({exc})"))

    def lane_left(self) -> None:
        if self._head is None:  # the head comes later than the lane's pieces
            self._lane = None
            return
        self.close_lane()
        behind, self._behind, self._num_behind = self._behind, [], 0
        for piece in behind:
            self.take_from_lane(piece)
        if self._is_paused and not self._pieces and self.is_open:
            self._is_paused = False
            self._open().resume_reading()
        if self._is_whole_behind and self._lost is None:
            self._is_complete = True
            self._wake()

    def lane_lost(self) -> None:
        if self._head is None:  # the answer may still come over this connection
            self._lane_is_lost = True
        elif self._is_over_lane:
            self._fail_without_lane()

    def _fail_without_lane(self) -> None:
        self.fail(EngineLost(f"node {self._node} has ended the connection of its streams"))

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
        self.close_lane()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # these bytes answer no request
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
        if self._lane is not None:
            if not self._head.get(_CHANNEL_HEADER):
                self.close_lane()
            elif self._lane_is_lost:
                self._fail_without_lane()
            else:
                self._is_over_lane = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self._is_head or self._lost is not None:
            return
        if not self._is_over_lane:
            self._take(body)
            return
        self._behind.append(body)
        self._num_behind += len(body)
        if self._num_behind > MAX_WAITING_BYTES:
            self._pause()

    def on_message_complete(self) -> None:
        if self._lost is not None:
            return  # something of its beginning is missing
        if self._is_over_lane:
            self._is_whole_behind = True
        elif self._head is not None:
            self._is_complete = True
            self._wake()

    # -- what waits for its reader -----------------------------------------------------------------

    def _take(self, piece: bytes) -> None:
        # a read that was woken has earlier pieces to return first
        if self._sink is not None and self._is_awaited and self._sink(piece):
            return
        self._pieces.append(piece)
        self._num_waiting += len(piece)
        if self._num_waiting > MAX_WAITING_BYTES:
            self._hold_back()
        self._wake()

    def _hold_back(self) -> None:
        if not self._is_over_lane:
            self._pause()
        elif self._num_waiting > _MAX_LANE_BYTES:
            self.fail(EngineLost(f"node {self._node} does not hold back a slow stream"))
        elif self._lane is not None and not self._is_leaving:
            self._is_leaving = True
            self._lane.leave()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._open().pause_reading()

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
