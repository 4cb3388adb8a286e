"""The table of open connections, which chooses the one to close when there are too many.

Owns the share of connections that have sent no request: they cost a client nothing and need no key,
so they must never keep out clients with requests. Pure bookkeeping: the HTTP protocol reports each
connection's state.
"""

from __future__ import annotations

import logging
from typing import Protocol

logger = logging.getLogger(__name__)

MIN_SILENT = 32
"""At least this many connections may wait to send their first request."""

_LOG_INTERVAL_S = 10.0


class Connection(Protocol):
    """A connection in the table. ``give_up`` closes it at once; ``ConnectionTable.closed`` may be
    called for it again."""

    def give_up(self) -> None: ...


class ConnectionTable:
    """A connection is *silent* until the head of its first request is complete, then *busy* until
    the end of the answer, then *idle* until the next head. At most ``limit`` are kept. At most half
    of them may be silent, fewer if others need the room, but never fewer than ``MIN_SILENT``. The
    oldest is closed first, silent before idle ones; busy ones are kept.

    Belongs to one loop. ``now_s`` is for the log lines.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # ordered by age; the values are not used
        self._silent: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}
        self._busy: dict[Connection, None] = {}
        self._num_given_up = 0
        self._logged_s: float | None = None

    def __len__(self) -> int:
        return len(self._silent) + len(self._idle) + len(self._busy)

    def opened(self, connection: Connection, now_s: float) -> None:
        self._silent[connection] = None
        num_asking = len(self._idle) + len(self._busy)
        room = max(MIN_SILENT, min(self._limit // 2, self._limit - num_asking))
        if len(self._silent) > room:
            self._give_up(self._silent, now_s)
        elif len(self) > self._limit and self._idle:
            self._give_up(self._idle, now_s)

    def asked(self, connection: Connection) -> None:
        """Note that the head of a request is complete."""
        self._forget(connection)
        self._busy[connection] = None

    def answered(self, connection: Connection) -> None:
        """Note that the connection waits for its client's next request. A connection that is no
        longer in the table is not added again."""
        if connection in self._busy:
            self._forget(connection)
            self._idle[connection] = None

    def closed(self, connection: Connection) -> None:
        """Note that the connection is closed, or no longer HTTP. Idempotent."""
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)

    def _give_up(self, kind: dict[Connection, None], now_s: float) -> None:
        oldest = next(iter(kind))
        del kind[oldest]
        oldest.give_up()
        self._num_given_up += 1
        if self._logged_s is None or now_s - self._logged_s >= _LOG_INTERVAL_S:
            logger.warning(
                "%d connections have been closed that waited without a request, to make room for "
                "others: %d are open (%d silent, %d idle), %d may be. If they are clients of "
                "yours, raise --max-connections and the limit of open files (ulimit -n)",
                self._num_given_up,
                len(self),
                len(self._silent),
                len(self._idle),
                self._limit,
            )
            self._logged_s, self._num_given_up = now_s, 0
