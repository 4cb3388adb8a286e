"""What clients have stored, per tenant, within limits on number, bytes and age.

Owns the order of use and the bounds: beyond one the least recently used entries are dropped, except
those that may not be dropped yet. Must not know what an entry contains.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from quire.core.ids import TenantId


class ShelvedEntry(Protocol):
    """An entry of a shelf, which sets its ``used_s`` (seconds, monotonic) and ``num_bytes``."""

    used_s: float
    num_bytes: int

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> TenantId: ...

    @property
    def running(self) -> bool:
        """Whether it may not be dropped yet."""
        ...


E = TypeVar("E", bound=ShelvedEntry)


@dataclass(frozen=True, slots=True)
class ShelfLimits:
    """Limits for each tenant. ``ttl_s``: seconds since the last use."""

    ttl_s: float
    max_entries: int
    max_bytes: int


@dataclass(slots=True)
class _Shelf(Generic[E]):
    """One tenant's entries, the least recently used first."""

    entries: OrderedDict[str, E] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class Shelves(Generic[E]):
    """The entries of all tenants. ``now_s`` is a monotonic clock; ``on_drop`` is called with each
    entry that is dropped, whatever the reason."""

    def __init__(
        self, limits: ShelfLimits, now_s: Callable[[], float], on_drop: Callable[[E], None]
    ) -> None:
        self._limits = limits
        self._now_s = now_s
        self._on_drop = on_drop
        self._shelves: dict[TenantId, _Shelf[E]] = {}

    def put(self, entry: E) -> None:
        """Add ``entry``, or mark it as used if it is here. ``count`` and ``make_room`` follow."""
        shelf = self._shelves.setdefault(entry.tenant, _Shelf())
        shelf.entries[entry.id] = entry
        self.use(entry)

    def find(self, tenant: TenantId, entry_id: str) -> E | None:
        """Return an entry and mark it as used; None if the tenant has none with this id."""
        self.drop_old()
        shelf = self._shelves.get(tenant)
        entry = None if shelf is None else shelf.entries.get(entry_id)
        if entry is not None:
            self.use(entry)
        return entry

    def holds(self, entry: E) -> bool:
        """Return whether ``entry`` is still here."""
        shelf = self._shelves.get(entry.tenant)
        return shelf is not None and shelf.entries.get(entry.id) is entry

    def of(self, tenant: TenantId) -> list[E]:
        """Return the tenant's entries, the least recently used first."""
        shelf = self._shelves.get(tenant)
        return [] if shelf is None else list(shelf.entries.values())

    def num_bytes(self, tenant: TenantId) -> int:
        """Return the bytes of the tenant's entries."""
        shelf = self._shelves.get(tenant)
        return 0 if shelf is None else shelf.num_bytes

    def __iter__(self) -> Iterator[E]:
        """Iterate over the entries of all tenants."""
        for shelf in self._shelves.values():
            yield from shelf.entries.values()

    def use(self, entry: E) -> None:
        entry.used_s = self._now_s()
        self._shelves[entry.tenant].entries.move_to_end(entry.id)

    def count(self, entry: E, num_bytes: int) -> None:
        """Set the size of ``entry``."""
        self._shelves[entry.tenant].num_bytes += num_bytes - entry.num_bytes
        entry.num_bytes = num_bytes

    def drop_old(self) -> None:
        """Drop expired entries of all tenants: a tenant that never calls again would otherwise keep
        what it has stored."""
        limit_s = self._now_s() - self._limits.ttl_s
        for shelf in self._shelves.values():
            old = takewhile(lambda entry: entry.used_s <= limit_s, shelf.entries.values())
            for entry in [entry for entry in old if not entry.running]:
                self.drop(entry)

    def make_room(self, wanted: E) -> None:
        """Drop entries of its tenant until the limits hold, but never ``wanted``: its client was
        answered that it is stored."""
        shelf, limits = self._shelves[wanted.tenant], self._limits

        def is_within_limits() -> bool:
            return len(shelf.entries) <= limits.max_entries and shelf.num_bytes <= limits.max_bytes

        if is_within_limits():
            return  # without a copy of the entries
        for entry in list(shelf.entries.values()):
            if is_within_limits():
                return
            if not entry.running and entry is not wanted:
                self.drop(entry)

    def drop(self, entry: E) -> None:
        shelf = self._shelves[entry.tenant]
        del shelf.entries[entry.id]
        shelf.num_bytes -= entry.num_bytes
        self._on_drop(entry)
