"""What cached pages are worth to a reader outside, for example a router, and for how long.

Owns the prices, by the keys of pages, and their bounds. A price does not keep a page: it decides
which cached pages are evicted last, so a claim for memory always finds it. Must not know contents.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class PriceList:
    """At most ``max_keys`` keys have a price. Times are those of the caller."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._prices: dict[bytes, tuple[float, float]] = {}
        """The price of each key, and when it ends."""
        self._cheapest: list[tuple[float, bytes]] = []
        self._ends: list[tuple[float, bytes]] = []
        """Heaps that have each key once or more; entries may be outdated."""

    def __len__(self) -> int:
        return len(self._prices)

    def __contains__(self, key: bytes) -> bool:
        return key in self._prices

    def has(self, key: bytes) -> bool:
        """As ``in``, but a compiled method is called in a third of the time. Called for each
        page."""
        return key in self._prices

    def price(self, key: bytes) -> float:
        """The price of ``key``; 0.0 if it has none."""
        found = self._prices.get(key)
        return 0.0 if found is None else found[0]

    def set(self, keys: Sequence[bytes], price: float, ends_s: float) -> tuple[int, list[bytes]]:
        """Give ``keys`` a price until ``ends_s``, in their order. If there is no room, cheaper keys
        lose theirs; if there are none, the rest of ``keys`` gets none. Returns how many of ``keys``
        were handled, and the keys that have lost their price. Of two prices of one key the higher
        one holds, of two equal ones the longer. A price of 0 removes the others."""
        lost: list[bytes] = []
        for number, key in enumerate(keys):
            known = self._prices.get(key)
            if price <= 0.0:
                if known is not None:
                    self.drop(key)
                    lost.append(key)
                continue
            if known is None and len(self._prices) >= self._max_keys:
                cheapest = self._first(self._cheapest, 0)
                if cheapest is None or self._prices[cheapest][0] >= price:
                    return number, lost
                self.drop(cheapest)
                lost.append(cheapest)
            if known is None or known < (price, ends_s):
                self._prices[key] = price, ends_s
                heapq.heappush(self._cheapest, (price, key))
                heapq.heappush(self._ends, (ends_s, key))
        self._tidy()
        return len(keys), lost

    def drop(self, key: bytes) -> None:
        self._prices.pop(key, None)

    def expire(self, now_s: float) -> list[bytes]:
        """Remove the prices whose time is over; return their keys."""
        over = []
        while (key := self._first(self._ends, 1)) is not None and self._prices[key][1] <= now_s:
            self.drop(key)
            over.append(key)
        return over

    def clear(self) -> None:
        self._prices.clear()
        self._cheapest.clear()
        self._ends.clear()

    def _first(self, heap: list[tuple[float, bytes]], field: int) -> bytes | None:
        """The key with the smallest ``field``."""
        while heap:
            value, key = heap[0]
            found = self._prices.get(key)
            if found is not None and found[field] == value:
                return key
            heapq.heappop(heap)
        return None

    def _tidy(self) -> None:
        """Rebuild the heaps when they have more outdated entries than keys may have a price."""
        if max(len(self._cheapest), len(self._ends)) > 2 * self._max_keys:
            self._cheapest = [(price, key) for key, (price, _) in self._prices.items()]
            self._ends = [(ends_s, key) for key, (_, ends_s) in self._prices.items()]
            heapq.heapify(self._cheapest)
            heapq.heapify(self._ends)

    def check_invariants(self) -> None:
        assert len(self._prices) <= self._max_keys
        assert self._prices.keys() <= {key for _, key in self._ends}
        assert self._prices.keys() <= {key for _, key in self._cheapest}
