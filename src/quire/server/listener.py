"""The HTTP listener of a node: uvicorn around the application.

Imported after the node's start has begun (see ``serve``), because importing the web framework takes
longer than importing the node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn

from quire.core.config import ServerConfig, TenantConfig
from quire.node import Node
from quire.server.app import create_app
from quire.server.connections import ConnectionTable
from quire.server.gathered_writes import GatheredWrites
from quire.server.open_files import MAX_CONNECTIONS, max_connections
from quire.server.simple_clients import SimpleClientsProtocol

_KEEP_ALIVE_S = 30
_MIN_BACKLOG, _MAX_BACKLOG = 64, 2048
_CLOSE_TIMEOUT_S = 5
"""How long connections may stay open once the node has drained."""

_MAX_FRAME_BYTES = 2 << 20


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: a signal first drains the node, then stops the
    listener."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_listener(node: Node, server: ServerConfig, tenants: Sequence[TenantConfig]) -> Listener:
    """Serves ``node`` once its ``serve`` is called with a bound socket."""
    limit = min(server.max_connections or MAX_CONNECTIONS, max_connections())
    protocol: Any = partial(
        SimpleClientsProtocol,
        writes=GatheredWrites(),
        table=ConnectionTable(limit),
        head_timeout_s=server.head_timeout_s,
    )
    return Listener(
        uvicorn.Config(
            create_app(node, server, tenants),
            http=protocol,
            ws="websockets-sansio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # connections accepted in one turn of the loop are examined after it
            backlog=max(_MIN_BACKLOG, min(_MAX_BACKLOG, limit // 8)),
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
            ws_max_size=_MAX_FRAME_BYTES,
        )
    )
