"""``SharedResults``: results of pure primitives by tenant and key, so that equal ones run once.

Owns the kept results and the running computations: a result that is being computed is not computed
a second time. A tenant cannot learn, from a result or from its time, what another tenant asked.
Must not know what a result is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from quire.core.fair_cache import FairCache
from quire.core.ids import TenantId

_OVERHEAD_BYTES = 300
"""Bytes of the key and the tables for one result."""


class KeptResult(NamedTuple):
    value: Any
    ends_s: float


Computing = Future[tuple[Any] | None]
"""Ends with the value, or with None if there is none; then the waiting caller must ask again."""


@dataclass(frozen=True, slots=True)
class SharingStatistics:
    """``num_kept``: requests that got a kept result; ``num_waited``: that waited for a running
    computation; ``num_computed``: that computed. ``num_bytes``: bytes that are kept now."""

    num_kept: int
    num_waited: int
    num_computed: int
    num_bytes: int


class SharedResults:
    """Keeps each result for ``ttl_s``, at most ``max_bytes`` for all tenants; with 0 bytes only
    running computations are shared. If there is no room, the tenant with the most bytes loses its
    least recently used result. For any thread."""

    def __init__(self, max_bytes: int, ttl_s: float, now_s: Callable[[], float]) -> None:
        self._ttl_s, self._now_s = ttl_s, now_s
        self._lock = threading.Lock()
        self._functions: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._numbers = count(1)
        self._kept = FairCache[TenantId, KeptResult](max_bytes)
        self._under_way: dict[tuple[TenantId, bytes], Computing] = {}
        self._num_kept = self._num_waited = self._num_computed = 0

    def begin(self, tenant: TenantId, key: bytes) -> KeptResult | Computing | None:
        """Return the kept result, or a future that ends when another caller has computed it. None:
        the caller must compute it and call ``end``."""
        with self._lock:
            kept = self._found(tenant, key)
            if kept is not None:
                self._num_kept += 1
                return kept
            if (tenant, key) in self._under_way:
                return self._under_way[tenant, key]
            self._under_way[tenant, key] = Future()
            return None

    def end(self, tenant: TenantId, key: bytes, kept: tuple[Any, int] | None) -> None:
        """End a computation. ``kept``: the result and its size in bytes; None if there is none."""
        with self._lock:
            under_way = self._under_way.pop((tenant, key))
            if kept is not None:
                self._num_computed += 1
                self._keep(tenant, key, *kept)
        under_way.set_result(None if kept is None else (kept[0],))

    def note_waited(self) -> None:
        """Count a caller that got the result of a running computation."""
        with self._lock:
            self._num_waited += 1

    def number_of(self, function: Any) -> int | None:
        """Return a number that only this function has, even after it is gone, or None if it cannot
        have one."""
        with self._lock:
            try:
                return self._functions.setdefault(function, next(self._numbers))
            except TypeError:  # it has no hash or cannot be referred to weakly
                return None

    def statistics(self) -> SharingStatistics:
        with self._lock:
            return SharingStatistics(
                self._num_kept, self._num_waited, self._num_computed, self._kept.num_bytes
            )

    def check_invariants(self) -> None:
        """Assert that the sums equal the kept bytes and are within the limit."""
        with self._lock:
            self._kept.check_invariants()

    def _found(self, tenant: TenantId, key: bytes) -> KeptResult | None:
        kept = self._kept.get(tenant, key)
        if kept is not None and kept.ends_s <= self._now_s():
            self._kept.drop(tenant, key)
            return None
        return kept

    def _keep(self, tenant: TenantId, key: bytes, value: Any, num_bytes: int) -> None:
        kept = KeptResult(value, self._now_s() + self._ttl_s)
        self._kept.put(tenant, key, kept, num_bytes + _OVERHEAD_BYTES)
