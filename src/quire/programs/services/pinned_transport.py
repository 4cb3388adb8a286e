"""HTTP connections to pinned addresses, pooled by host name.

A connection's certificate was checked for its host name: other hosts at the same address, such as
that of a proxy, get separate connections. Guests have this file and never import it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import httpcore
import httpx

from quire.programs.services.pinned import pinned_address

POOL_LIMITS = httpx.Limits(max_connections=512, max_keepalive_connections=32)


def tls_context() -> ssl.SSLContext:
    """The TLS settings for connections; transports may share them."""
    return httpx.create_ssl_context(trust_env=False)


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """``inner`` opens the connections. The task whose request needs a connection opens it, so the
    address can be passed in a context variable."""

    def __init__(self, inner: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._inner = inner or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface's own
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return await self._inner.connect_tcp(
            pinned_address() or host, port, timeout, local_address, socket_options
        )

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class PinnedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport over a ``PinnedBackend``, without proxies from the environment."""

    def __init__(
        self,
        limits: httpx.Limits = POOL_LIMITS,
        inner: httpcore.AsyncNetworkBackend | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        tls = tls or tls_context()
        super().__init__(verify=tls, trust_env=False, limits=limits)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=PinnedBackend(inner),
        )
