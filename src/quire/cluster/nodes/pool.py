"""The connections to one node: kept warm between exchanges, ended together when the node is lost.

Owns which connection carries which exchange. Must not know what is asked.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import AsyncIterable
from typing import Self

from quire.cluster.nodes.addresses import NodeAddress
from quire.cluster.nodes.connection import AnswerHead, NodeConnection, Sink
from quire.cluster.nodes.lane import Lane
from quire.core.errors import EngineLost

IDLE_S = 20.0
"""How long a connection is kept idle. Nodes close one after 30 s: the pool closes it before, so
that no request is written to a connection that the node closes."""

_MAX_IDLE = 256
CONNECT_TIMEOUT_S = 3.0


class NotReached(EngineLost):
    """No connection to the node came about: it has received nothing."""


class NodeExchange:
    """One request and its answer. Use it as a context manager, or call ``close``: an answer that
    has not been read to its end is cancelled at the node."""

    def __init__(self, connection: NodeConnection, pool: ConnectionPool) -> None:
        self._connection = connection
        self._pool = pool
        self._is_closed = False
        self._left: bytes | None = None
        """What was not read, once the connection belongs to other exchanges."""

    async def head(self) -> AnswerHead:
        return await self._connection.head()

    async def read(self) -> bytes:
        if self._left is not None:
            left, self._left = self._left, b""
            return left
        return await self._connection.read()

    def pass_to(self, sink: Sink) -> None:
        """Give pieces to ``sink`` as they arrive (see ``NodeConnection.pass_to``)."""
        if self._left is None:
            self._connection.pass_to(sink)

    async def read_all(self, limit: int) -> bytes:
        """Return the whole body.

        Raises:
            EngineLost: it is longer than ``limit`` bytes.
        """
        body = bytearray()
        while piece := await self.read():
            body += piece
            if len(body) > limit:
                raise EngineLost(f"a node answers with more than {limit} bytes")
        return bytes(body)

    def close(self) -> None:
        """Give the connection back, or end it if the answer was not read to its end. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if self._pool.give_back(self._connection):
                self._left = self._connection.unread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ConnectionPool:
    """Connections to the node at ``address``. Belongs to one loop."""

    def __init__(self, address: NodeAddress, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._tls = ssl.create_default_context() if address.tls else None
        # (connection, time at which it became idle); the one used last is taken first
        self._idle: deque[tuple[NodeConnection, float]] = deque()
        self._busy: set[NodeConnection] = set()
        self._max_idle = _MAX_IDLE

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_busy(self) -> int:
        return len(self._busy)

    async def send(
        self,
        head: bytes,
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        may_repeat: bool = True,
        is_head: bool = False,
        lane: Lane | None = None,
    ) -> NodeExchange:
        """Send a request; its answer is then read from the exchange. ``lane``: the lane over which
        the answer may arrive.

        A node may close an idle connection at the moment at which the next request is written to
        it. Where the request may be repeated, it is then sent again over a new connection; others
        (``may_repeat`` off) get a new one at once.

        Raises:
            NotReached: the node cannot be reached.
            EngineLost: it has ended the connection; it may have received the request.
        """
        connection = self._take() if may_repeat and isinstance(body, bytes) else None
        if connection is not None:
            exchange = NodeExchange(connection, self)
            try:
                await connection.send(head, body, is_head=is_head, lane=lane)
                await connection.head()
                return exchange
            except EngineLost:
                exchange.close()
                if connection.has_received or connection.was_failed:
                    raise
            except BaseException:
                exchange.close()
                raise
        connection = await self._connect()
        exchange = NodeExchange(connection, self)
        try:
            await connection.send(head, body, is_head=is_head, lane=lane)
            await connection.head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    def give_back(self, connection: NodeConnection) -> bool:
        """End the use of ``connection``; return whether it is kept for other exchanges."""
        self._busy.discard(connection)
        connection.close_lane()
        if connection.is_reusable and len(self._idle) < self._max_idle:
            self._idle.append((connection, asyncio.get_running_loop().time()))
            return True
        connection.close()
        return False

    def fail(self, error: EngineLost, silent_since_s: float = math.inf) -> None:
        """Close the idle connections, and end with ``error`` every exchange that has been silent
        since ``silent_since_s``: the node is lost."""
        for connection in list(self._busy):
            if connection.active_s <= silent_since_s:
                connection.fail(error)
        self._close_idle()

    def close(self) -> None:
        self.fail(EngineLost("the router is stopping"))

    def retire(self) -> None:
        """Keep no idle connection from now on; running exchanges go on."""
        self._max_idle = 0
        self._close_idle()

    def _take(self) -> NodeConnection | None:
        oldest_s = asyncio.get_running_loop().time() - IDLE_S
        while self._idle and self._idle[0][1] < oldest_s:
            self._idle.popleft()[0].close()
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.is_open:
                self._busy.add(connection)
                return connection
        return None

    async def _connect(self) -> NodeConnection:
        address = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: NodeConnection(address.name), address.host, address.port, ssl=self._tls
                )
        except (OSError, TimeoutError) as exc:
            why = str(exc) or f"no connection within {self._connect_timeout_s:g} s"
            raise NotReached(f"node {address.name} cannot be reached ({why})") from exc
        self._busy.add(connection)
        return connection

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()
