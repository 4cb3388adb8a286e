"""The tenants' fair share of one engine: start-time fair queueing over tokens, by weight.

Owns one virtual time per tenant. A tenant that was away comes back at the present virtual time,
which is that of the active tenant that is furthest behind, so idleness earns no credit and many
small identities of one tenant earn no share.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from quire.core.ids import TenantId

T = TypeVar("T")


class FairShare:
    """The virtual times of the tenants. ``weights``: relative shares; tenants that are not named
    have weight 1."""

    def __init__(self, weights: Mapping[TenantId, float]) -> None:
        self._weights = dict(weights)
        self._virtual: dict[TenantId, float] = {}
        self._now = 0.0

    def weight(self, tenant: TenantId) -> float:
        return self._weights.get(tenant, 1.0)

    def start(self, tenant: TenantId) -> float:
        """The virtual time at which the tenant's next work begins: it never goes back."""
        return self._virtual.get(tenant, 0.0)

    def enter(self, tenant: TenantId) -> None:
        """Note that ``tenant`` has work again: the share that it did not use meanwhile is lost."""
        if self._virtual.get(tenant, 0.0) < self._now:
            self._virtual[tenant] = self._now

    def charge(self, tenant: TenantId, num_tokens: int) -> None:
        """Count ``num_tokens`` of work that are dispatched for ``tenant``."""
        start = max(self._virtual.get(tenant, 0.0), self._now)
        self._virtual[tenant] = start + num_tokens / self._weights.get(tenant, 1.0)

    def charge_all(self, tenants: Sequence[TenantId], num_tokens: Sequence[int]) -> None:
        """Charge each of ``tenants`` its number of tokens; a tenant's numbers are added up
        first."""
        by_tenant: dict[TenantId, int] = {}
        for index, tenant in enumerate(tenants):
            if num_tokens[index]:
                by_tenant[tenant] = by_tenant.get(tenant, 0) + num_tokens[index]
        for tenant, num in by_tenant.items():
            self.charge(tenant, num)

    def advance(self, active: Iterable[TenantId]) -> None:
        """Set the present time to the virtual time of the tenant furthest behind of ``active``,
        which are all that have work."""
        starts = [self._virtual.get(tenant, 0.0) for tenant in active]
        if starts:
            self._now = max(self._now, min(starts))

    def ordered(
        self,
        items: Iterable[T],
        tenant: Callable[[T], TenantId],
        key: Callable[[T], tuple[float, ...]],
    ) -> Iterator[T]:
        """Yield ``items``: next always one of the tenant that is furthest behind, within it by
        ``key``. For the few that a message may carry; those that wait are in a ``FairOrder``.

        The caller charges what it takes before it asks for the next.
        """
        waiting: dict[TenantId, list[tuple[tuple[float, ...], int, T]]] = defaultdict(list)
        for number, item in enumerate(items):
            waiting[tenant(item)].append((key(item), number, item))
        for queue in waiting.values():
            queue.sort(key=lambda ranked: ranked[:2], reverse=True)
        heap = [(max(self._virtual.get(name, 0.0), self._now), name) for name in waiting]
        heapq.heapify(heap)
        while heap:
            start, name = heap[0]
            _, _, item = waiting[name].pop()
            before = self._virtual.get(name, 0.0)
            yield item
            if self._virtual.get(name, 0.0) != before:
                self._now = max(self._now, start)
            if waiting[name]:
                heapq.heapreplace(heap, (max(self._virtual.get(name, 0.0), start), name))
            else:
                heapq.heappop(heap)
