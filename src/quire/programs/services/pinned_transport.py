"""HTTP connections to pinned addresses, pooled by host name.

A connection's certificate was checked for its host name: other hosts at the same address, such as
that of a proxy, get separate connections. Guests have this file and never import it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from functools import cache

import httpcore
import httpx

from quire.programs.services.pinned import pinned_address

POOL_LIMITS = httpx.Limits(max_connections=512, max_keepalive_connections=32)


Tls = Callable[[], ssl.SSLContext]
"""Gives the TLS settings for connections, the same each time; transports may share them."""


def trusted_tls() -> Tls:
    """With the certificates that are trusted. They are read at the first call, which takes 20 ms;
    most processes make none."""

    @cache
    def context() -> ssl.SSLContext:
        return httpx.create_ssl_context(trust_env=False)

    return context


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


class PinnedPool(httpcore.AsyncConnectionPool):
    """Connections over ``backend``; ``tls`` is called for the first one that needs it."""

    def __init__(self, limits: httpx.Limits, backend: PinnedBackend, tls: Tls) -> None:
        super().__init__(
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=backend,
        )
        self._expiry_s = limits.keepalive_expiry
        self._backend = backend
        self._tls = tls

    def create_connection(self, origin: httpcore.Origin) -> httpcore.AsyncConnectionInterface:
        return httpcore.AsyncHTTPConnection(
            origin,
            ssl_context=None if origin.scheme == b"http" else self._tls(),
            keepalive_expiry=self._expiry_s,
            network_backend=self._backend,
        )


class PinnedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport over a ``PinnedBackend``, without proxies from the environment."""

    def __init__(
        self,
        limits: httpx.Limits = POOL_LIMITS,
        inner: httpcore.AsyncNetworkBackend | None = None,
        tls: Tls | None = None,
    ) -> None:
        # httpx makes a pool, too, which is not used: without certificates it would trust nobody
        nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().__init__(verify=nobody, trust_env=False, limits=limits)
        self._pool = PinnedPool(limits, PinnedBackend(inner), tls or trusted_tls())
