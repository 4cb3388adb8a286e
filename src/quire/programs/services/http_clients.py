"""HTTP clients of a process that runs programs of several tenants: one client for each tenant.

A client keeps connections open between requests and limits their number; tenants share neither.
Guests have this file and never import it.
"""

from __future__ import annotations

import httpx

from quire.programs.services.network import new_client
from quire.programs.services.pinned_transport import POOL_LIMITS, PinnedTransport, trusted_tls


class TenantClients:
    """Use ``async with``; belongs to one loop. Certificates are read once for all clients."""

    def __init__(self) -> None:
        self._tls = trusted_tls()
        self._clients: dict[str, httpx.AsyncClient] = {}

    def of(self, tenant: str) -> httpx.AsyncClient:
        client = self._clients.get(tenant)
        if client is None:
            client = new_client(PinnedTransport(POOL_LIMITS, tls=self._tls))
            self._clients[tenant] = client
        return client

    async def __aenter__(self) -> TenantClients:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.aclose()
