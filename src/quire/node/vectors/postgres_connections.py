"""``PostgresConnections``: the connections of one node's store to its database.

Owns how long a call may take, and the lock by which other nodes know that this one lives. Must not
know what the calls do. With ``postgres``, the only module that imports psycopg.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from quire.core.errors import ConfigError

try:
    import psycopg
except ImportError as exc:  # pragma: no cover - depends on the environment
    raise ConfigError(
        f"a PostgreSQL vector store needs psycopg ({exc}): pip install 'quire[postgres]'"
    ) from exc

CONNECT_S = 10
STATEMENT_S = 60
"""The most seconds that the database works on one statement."""
ANSWER_S = STATEMENT_S + 10
"""The most seconds of a call. A database that has stopped, or a network that drops packets, does
not end a statement itself."""
CLOSE_S = 10
"""The most seconds for which a store that is closed waits for calls that have begun."""
KEEPALIVE_S = 60
_NEVER_IDLE = """
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'
"""
"""A database before PostgreSQL 14 has no such setting."""
LOCK_KEY = "hashtextextended('quire node ' || %s, 0)"
_TIMED_OUT = 0
"""What psycopg sends to a generator that it waits for if nothing has arrived for a while."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when the time of its call is over. psycopg itself waits for an
    answer without limit."""

    ends_at: Callable[[], float] = staticmethod(lambda: inf)
    """Return when its call must have ended, by ``monotonic``."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **named: Any) -> Any:
        return super().wait(self._bounded(gen), *args, **named)

    def _bounded(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                return end.value
            ready = yield wanted
            if ready == _TIMED_OUT and monotonic() > self.ends_at():
                self.close()
                raise psycopg.OperationalError("the database does not answer")


class PostgresConnections:
    """A connection for each thread that asks for one, and one that is kept: ``prepare`` is called
    with it when it is new. Each holds the lock of ``node``, so that the loss of one does not end
    it."""

    def __init__(self, address: str, node: str, prepare: Callable[[Any], None]) -> None:
        self._address, self._node, self._prepare = address, node, prepare
        self._of_thread = threading.local()
        self._open: list[BoundedConnection] = []
        self._keeper: BoundedConnection | None = None
        self._closes_at = inf
        self._lock = threading.Lock()

    def of_thread(self, ends_at: float) -> BoundedConnection:
        """Return the connection of this thread, for a call that must end at ``ends_at``.

        Raises:
            psycopg.Error: the database cannot be reached.
        """
        with self._lock:
            if self._keeper is None or self._keeper.closed:
                self._keeper = self._kept()
        found: BoundedConnection | None = getattr(self._of_thread, "connection", None)
        if found is None or found.closed:
            found = self._of_thread.connection = self._connected()
            with self._lock:
                self._open = [one for one in self._open if not one.closed] + [found]
        found.ends_at = lambda: min(ends_at, self._closes_at)
        return found

    def check_keeper(self) -> None:
        """Ask the connection that is kept, so that it is known whether it was lost, too: a
        connection notices this only when it is used."""
        with self._lock, suppress(psycopg.Error):
            if self._keeper is not None and not self._keeper.closed:
                self._limit(self._keeper)
                self._keeper.execute("SELECT 1")

    def end_calls(self) -> None:
        """Let calls that run, and those that begin from now on, end within ``CLOSE_S``."""
        self._closes_at = min(self._closes_at, monotonic() + CLOSE_S)

    def close(self) -> None:
        """Close all connections, which no thread may use any more. Idempotent."""
        for connection in (*self._open, self._keeper):
            if connection is not None:
                connection.close()
        self._open, self._keeper = [], None

    def _kept(self) -> BoundedConnection:
        """Return a connection with which ``prepare`` was called."""
        connection = self._connected()
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected(self) -> BoundedConnection:
        """Return a connection that holds the lock, and that neither the database nor a firewall
        ends because the node is idle."""
        if monotonic() > self._closes_at:
            raise psycopg.OperationalError("the node is stopping")
        options = f"-c statement_timeout={STATEMENT_S * 1000} -c client_min_messages=warning"
        connection = BoundedConnection.connect(
            self._address, autocommit=True, connect_timeout=CONNECT_S, options=options,
            keepalives_idle=KEEPALIVE_S,
        )  # fmt: skip
        self._limit(connection, ANSWER_S)
        try:
            connection.execute(_NEVER_IDLE)
            connection.execute(f"SELECT pg_advisory_lock_shared({LOCK_KEY})", (self._node,))
        except BaseException:
            connection.close()
            raise
        return connection

    def _limit(self, connection: BoundedConnection, seconds: float = CONNECT_S) -> None:
        ends_at = monotonic() + seconds
        connection.ends_at = lambda: min(ends_at, self._closes_at)
