"""Named snapshots of pages, within a tenant.

Owns names, owners and times to live. A snapshot holds a reference to each content, so later writes
to a page copy its content first. An export with a time to live may outlive its owner: it then
belongs to the tenant and is removed when memory is needed. Each tenant has its own limit for
ownerless exports, and memory is taken first from the tenant that has the most pages in them: one
tenant's exports are not removed because another leaves many.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from quire.control.memory.content import Content
from quire.core.ids import EngineId, ProgramId, TenantId

MAX_LEFT = 4096
"""The most ownerless exports of one tenant."""
_MAX_STALE = 64


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """One exported page: its content, fill, positions and mask at the time of the export."""

    content: Content | None
    fill: int
    positions: tuple[int, ...]
    mask: int


@dataclass(slots=True)
class Export:
    """One export. ``owner``: None after the owner has ended and left the export to the tenant.
    ``expires_s``: None if the export ends with its owner. ``tokens``: the text of the pages as the
    owner gave it."""

    tenant: TenantId
    name: str
    owner: ProgramId | None
    engine: EngineId
    pages: tuple[PageSnapshot, ...]
    ttl_s: float | None
    expires_s: float | None
    tokens: list[int] | None = None


@dataclass(slots=True)
class ExportTotals:
    """The number of a tenant's exports and of their pages."""

    num_exports: int = 0
    num_pages: int = 0


class ExportTable:
    """All exports of the node."""

    def __init__(self) -> None:
        self._exports: dict[tuple[TenantId, str], Export] = {}
        self._by_owner: dict[ProgramId, dict[str, Export]] = {}
        self._kept: dict[TenantId, ExportTotals] = {}
        self._left: dict[TenantId, OrderedDict[str, Export]] = {}
        """Ownerless exports of each tenant, least recently used first."""
        self._num_left_pages: Counter[tuple[TenantId, EngineId]] = Counter()
        """The pages of each tenant's ownerless exports on each engine."""
        self._expiries: list[tuple[float, int, Export]] = []
        """A heap with one entry for each export that expires, at its expiry or earlier; it may also
        have entries of removed exports."""
        self._num_scheduled = 0

    def __len__(self) -> int:
        return len(self._exports)

    def get(self, tenant: TenantId, name: str) -> Export | None:
        return self._exports.get((tenant, name))

    def add(self, export: Export) -> None:
        assert (export.tenant, export.name) not in self._exports
        self._exports[export.tenant, export.name] = export
        kept = self._kept.setdefault(export.tenant, ExportTotals())
        kept.num_exports += 1
        kept.num_pages += len(export.pages)
        assert export.owner is not None
        self._by_owner.setdefault(export.owner, {})[export.name] = export
        self._schedule(export)

    def touch(self, export: Export, now_s: float) -> None:
        """Start the time to live again, as the export was imported."""
        if export.ttl_s is not None:
            export.expires_s = now_s + export.ttl_s  # its entry is moved when it is popped
        if export.owner is None:
            self._left[export.tenant].move_to_end(export.name)

    def leave(self, export: Export) -> None:
        """Leave the export of an owner that ends to the tenant."""
        self._disown(export)
        export.owner = None
        self._left.setdefault(export.tenant, OrderedDict())[export.name] = export
        self._num_left_pages[export.tenant, export.engine] += len(export.pages)

    def left(self, engine: EngineId) -> Iterator[Export]:
        """Ownerless exports on ``engine`` in the order of removal: always the least recently used
        one of the tenant that has the most pages in the remaining ones. Those that were yielded may
        be removed meanwhile; a caller that needs few looks at few."""
        order = [
            (-self._num_left_pages[tenant, engine], place, iter(list(exports.values())))
            for place, (tenant, exports) in enumerate(self._left.items())
        ]
        heapq.heapify(order)
        while order:
            num_less, place, exports = order[0]
            export = _first_on(exports, engine)
            if export is None:
                heapq.heappop(order)
            else:
                heapq.heapreplace(order, (num_less + len(export.pages), place, exports))
                yield export

    def surplus(self, tenant: TenantId) -> list[Export]:
        """The ownerless exports of ``tenant`` beyond ``MAX_LEFT``, least recently used first."""
        exports = self._left.get(tenant, OrderedDict())
        return list(islice(exports.values(), max(0, len(exports) - MAX_LEFT)))

    def _schedule(self, export: Export) -> None:
        if export.expires_s is not None:
            self._num_scheduled += 1
            heapq.heappush(self._expiries, (export.expires_s, self._num_scheduled, export))

    def _is_kept(self, export: Export) -> bool:
        return self._exports.get((export.tenant, export.name)) is export

    def remove(self, export: Export) -> None:
        del self._exports[export.tenant, export.name]
        kept = self._kept[export.tenant]
        kept.num_exports -= 1
        kept.num_pages -= len(export.pages)
        if len(self._expiries) > 2 * len(self._exports) + _MAX_STALE:
            self._expiries = [entry for entry in self._expiries if self._is_kept(entry[2])]
            heapq.heapify(self._expiries)
        if export.owner is None:
            self._forget_left(export)
        self._disown(export)

    def _forget_left(self, export: Export) -> None:
        exports = self._left[export.tenant]
        del exports[export.name]
        self._num_left_pages[export.tenant, export.engine] -= len(export.pages)
        if not exports:
            del self._left[export.tenant]
        if not self._num_left_pages[export.tenant, export.engine]:
            del self._num_left_pages[export.tenant, export.engine]

    def _disown(self, export: Export) -> None:
        if export.owner is None:
            return
        owned = self._by_owner[export.owner]
        del owned[export.name]
        if not owned:
            del self._by_owner[export.owner]

    def owned_by(self, program: ProgramId) -> list[Export]:
        return list(self._by_owner.get(program, {}).values())

    def num_of(self, program: ProgramId) -> int:
        return len(self._by_owner.get(program, ()))

    def kept_by(self, tenant: TenantId) -> ExportTotals:
        """All exports of ``tenant``, ownerless ones included."""
        return self._kept.get(tenant) or ExportTotals()

    def num_pages_of(self, program: ProgramId) -> int:
        return sum(len(export.pages) for export in self._by_owner.get(program, {}).values())

    def expired(self, now_s: float) -> Iterator[Export]:
        """Exports whose time to live is over; the caller removes each."""
        while (at_s := self.next_expiry_s()) is not None and at_s <= now_s:
            yield heapq.heappop(self._expiries)[2]

    def next_expiry_s(self) -> float | None:
        while self._expiries:
            at_s, _, export = self._expiries[0]
            if export.expires_s == at_s and self._is_kept(export):
                return at_s
            heapq.heappop(self._expiries)
            if self._is_kept(export):
                self._schedule(export)
        return None

    def exports(self) -> Iterator[Export]:
        return iter(self._exports.values())


def _first_on(exports: Iterator[Export], engine: EngineId) -> Export | None:
    """Take exports until one is on ``engine``, and return that. A loop, because compiled code would
    take all of them for a generator expression."""
    for export in exports:
        if export.engine == engine:
            return export
    return None
