"""Binds the address of a server before anything else of it starts."""

from __future__ import annotations

import errno
import socket

from quire.core.config import ServerConfig
from quire.core.errors import ConfigError

_BACKLOG = 1024

_REMEDIES = {
    errno.EADDRINUSE: "choose another --port or stop what uses it",
    errno.EADDRNOTAVAIL: "give --host an address of this machine, or 0.0.0.0 for all it has",
    errno.EACCES: "choose a --port of 1024 or above, or give this process the right to lower ones",
}


def bind(server: ServerConfig) -> socket.socket:
    """Return a listening socket for the configured address; port 0 picks a free one, and ``::``
    accepts IPv4 too.

    Raises:
        ConfigError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        sock = socket.create_server(
            (server.host, server.port),
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=server.host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as exc:
        remedy = _REMEDIES.get(exc.errno or 0, "choose another --host or --port")
        raise ConfigError(
            f"cannot listen on {server.host}:{server.port}: {exc.strerror or exc}; {remedy}"
        ) from exc
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # accepted connections inherit it: one whose client reads nothing is dropped with its buffer
        limit_ms = int(2000 * server.write_timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
    return sock
