"""Decides who may start work on the node: configured tenants, as long as the node accepts work."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.config import TenantConfig
from quire.core.errors import Draining, Forbidden
from quire.core.ids import TenantId


class TenantGate:
    """The configured tenants, and whether the node accepts new work."""

    def __init__(self, tenants: Sequence[TenantConfig]) -> None:
        self._tenants = {tenant.id: tenant for tenant in tenants}
        self._draining = False

    @property
    def draining(self) -> bool:
        return self._draining

    def close(self) -> None:
        """Accept no new work from now on."""
        self._draining = True

    def check(self) -> None:
        """Raise ``Draining`` once the node accepts no new work."""
        if self._draining:
            raise Draining(
                "this node is stopping and takes no new work: retry on another, or later"
            )

    def tenant(self, tenant: TenantId) -> TenantConfig:
        """Return a tenant's configuration; raise ``Forbidden`` if it is not configured."""
        known = self._tenants.get(tenant)
        if known is None:
            raise Forbidden(f"no tenant {tenant!r} on this node: add it to the configuration")
        return known
