"""An HTTP listener: uvicorn around an application, with limits on its clients.

Must not know what the application does: nodes and routers listen in the same way.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from quire.core.config import ServerConfig
from quire.server.listening.connections import ConnectionTable
from quire.server.listening.gathered_writes import GatheredWrites
from quire.server.listening.open_files import MAX_CONNECTIONS, max_connections
from quire.server.listening.simple_clients import SimpleClientsProtocol

_KEEP_ALIVE_S = 30
_MIN_BACKLOG, _MAX_BACKLOG = 64, 2048
_CLOSE_TIMEOUT_S = 5
"""How long connections may stay open once the application has drained."""

_MAX_FRAME_BYTES = 2 << 20


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: a signal first drains the application, then stops the
    listener."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_listener(
    app: ASGIApp,
    server: ServerConfig,
    *,
    has_lifespan: bool = True,
    close_timeout_s: float = _CLOSE_TIMEOUT_S,
) -> Listener:
    """Return a listener that serves ``app`` once its ``serve`` is called with a bound socket.
    ``has_lifespan``: ``app`` handles the events of its start and end. After a stop, connections may
    stay open for ``close_timeout_s``."""
    limit = min(server.max_connections or MAX_CONNECTIONS, max_connections())
    protocol: Any = partial(
        SimpleClientsProtocol,
        writes=GatheredWrites(),
        table=ConnectionTable(limit),
        head_timeout_s=server.head_timeout_s,
    )
    return Listener(
        uvicorn.Config(
            app,
            http=protocol,
            ws="websockets-sansio",
            lifespan="on" if has_lifespan else "off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # connections accepted in one turn of the loop are examined after it
            backlog=max(_MIN_BACKLOG, min(_MAX_BACKLOG, limit // 8)),
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(close_timeout_s),
            ws_max_size=_MAX_FRAME_BYTES,
        )
    )
