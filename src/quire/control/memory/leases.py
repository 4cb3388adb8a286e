"""Leases: parts of engines' memory that wait for K and V from elsewhere, or hold what has arrived.

The third holder of contents, beside programs and exports; a lease belongs to a tenant. What its
engine had already is held as an export holds it: it may move to the host, and is computed again if
it is dropped. What is still to arrive has blocks, which no other holder knows before the engine
reports that all has arrived: nothing can read, evict or move them. Owns the leases, their times to
live and what each tenant has in them. ``engines.leasing`` decides what happens to blocks.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.control.memory.content import Content
from quire.core.errors import Forbidden, InvalidArgument, UnknownHandle
from quire.core.ids import EngineId, TenantId
from quire.core.lease_commands import LeaseName

MAX_ENDED = 4096
"""Leases whose end is remembered, so that a client that comes too late learns why."""
_MAX_STALE = 64


@dataclass(slots=True, eq=False)
class Lease:
    """One lease. ``tokens``: what it holds or waits for, and behind them ``opaque``: how many slots
    each page has whose tokens are not known. ``matched``: the contents that were here when it was
    opened; ``received``: those behind them, in order. ``is_complete``: all of them may be read."""

    name: LeaseName
    tenant: TenantId
    adapter: int
    tokens: list[int]
    matched: list[Content]
    received: list[Content]
    expires_s: float
    opaque: list[int] = field(default_factory=list)
    is_complete: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + sum(self.opaque)

    @property
    def num_pages(self) -> int:
        return len(self.matched) + len(self.received)

    @property
    def contents(self) -> list[Content]:
        return self.matched + self.received


@dataclass(slots=True)
class LeaseTotals:
    """The number of a tenant's leases and of their pages."""

    num_leases: int = 0
    num_pages: int = 0


@dataclass(slots=True)
class LeaseTable:
    """All leases of the node, by number. Numbers are never used again."""

    num_opened: int = 0
    _leases: dict[int, Lease] = field(default_factory=dict)
    _leased: dict[TenantId, LeaseTotals] = field(default_factory=dict)
    _ended: OrderedDict[int, str] = field(default_factory=OrderedDict)
    _num_waiting: dict[EngineId, int] = field(default_factory=dict)
    _expiries: list[tuple[float, int]] = field(default_factory=list)
    """A heap with one entry for each lease, at its expiry or earlier; it may also have entries of
    leases that have ended."""

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def of_engine(self, engine: EngineId) -> list[Lease]:
        """The leases on ``engine``, oldest first."""
        return [lease for lease in self if lease.name.engine == engine]

    def next_number(self) -> int:
        self.num_opened += 1
        return self.num_opened

    def add(self, lease: Lease) -> None:
        name = lease.name
        assert name.number not in self._leases
        self._leases[name.number] = lease
        leased = self._leased.setdefault(lease.tenant, LeaseTotals())
        leased.num_leases += 1
        leased.num_pages += lease.num_pages
        if not lease.is_complete:
            self._count_waiting(lease, len(lease.received))
        heapq.heappush(self._expiries, (lease.expires_s, name.number))

    def complete(self, lease: Lease) -> None:
        """Note that all K and V of ``lease`` have arrived."""
        lease.is_complete = True
        self._count_waiting(lease, -len(lease.received))

    def remove(self, lease: Lease, why: str) -> None:
        """Remove ``lease``. ``why``: how it ended, for messages: "was taken", "has expired" ..."""
        del self._leases[lease.name.number]
        self._ended[lease.name.number] = why
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        leased = self._leased[lease.tenant]
        leased.num_leases -= 1
        leased.num_pages -= lease.num_pages
        if not lease.is_complete:
            self._count_waiting(lease, -len(lease.received))
        self._trim_expiries()

    def _trim_expiries(self) -> None:
        """Drop the expiries that no lease has any more, once they are many."""
        if len(self._expiries) > 2 * len(self._leases) + _MAX_STALE:
            self._expiries = [(one.expires_s, one.name.number) for one in self]
            heapq.heapify(self._expiries)

    def _count_waiting(self, lease: Lease, num_blocks: int) -> None:
        engine = lease.name.engine
        self._num_waiting[engine] = self._num_waiting.get(engine, 0) + num_blocks

    def num_waiting(self, engine: EngineId) -> int:
        """Blocks of ``engine`` that wait for K and V."""
        return self._num_waiting.get(engine, 0)

    def leased_by(self, tenant: TenantId) -> LeaseTotals:
        return self._leased.get(tenant) or LeaseTotals()

    def get(self, number: int) -> Lease | None:
        return self._leases.get(number)

    def find(self, name: LeaseName, tenant: TenantId) -> Lease:
        """The lease of that name.

        Raises:
            UnknownHandle: there is none, or no more, or the key is not its own.
            Forbidden: it belongs to another tenant.
        """
        lease = self._leases.get(name.number)
        if lease is None:
            why = self._ended.get(name.number, "was never opened here, or ended long ago")
            raise UnknownHandle(
                f"lease {name.number} of engine {name.engine} (epoch {name.epoch}) {why}: open a "
                "new one",
                lease=name.number,
            )
        if lease.name != name:
            raise UnknownHandle(
                f"lease {name.number} of engine {name.engine} (epoch {name.epoch}) is not open "
                "under that key: open a new one",
                lease=name.number,
            )
        if lease.tenant != tenant:
            raise Forbidden(f"lease {name.number} belongs to another tenant: open your own")
        return lease

    def find_with(self, name: LeaseName, tenant: TenantId, num_tokens: int) -> Lease:
        """The lease of that name, which is for at least ``num_tokens``.

        Raises:
            InvalidArgument: it is for fewer.
            UnknownHandle, Forbidden: see ``find``.
        """
        lease = self.find(name, tenant)
        if num_tokens > lease.num_tokens:
            raise InvalidArgument(
                f"{num_tokens} tokens are asked for and lease {name.number} has "
                f"{lease.num_tokens}: ask for that many at most",
                lease=name.number,
            )
        return lease

    def renew(self, lease: Lease, expires_s: float) -> None:
        lease.expires_s = expires_s
        heapq.heappush(self._expiries, (expires_s, lease.name.number))
        self._trim_expiries()

    def expired(self, now_s: float) -> Iterator[Lease]:
        """Leases whose time is over; the caller removes each."""
        while (at_s := self.next_expiry_s()) is not None and at_s <= now_s:
            yield self._leases[heapq.heappop(self._expiries)[1]]

    def next_expiry_s(self) -> float | None:
        while self._expiries:
            at_s, number = self._expiries[0]
            lease = self._leases.get(number)
            if lease is not None and lease.expires_s == at_s:
                return at_s
            heapq.heappop(self._expiries)
        return None

    def check_invariants(self) -> None:
        for lease in self:
            assert all(content.num_refs for content in lease.contents), "a lease holds its contents"
            if lease.is_complete:
                continue
            for content in lease.received:
                is_alone = content.num_refs == content.num_pins == 1 and not content.indexed
                assert is_alone, "a content that waits for K and V has another holder"
                assert content.block is not None, "a content that waits for K and V has no block"
        for tenant, leased in self._leased.items():
            own = [lease for lease in self if lease.tenant == tenant]
            assert leased.num_leases == len(own)
            assert leased.num_pages == sum(lease.num_pages for lease in own)
        for engine, num_waiting in self._num_waiting.items():
            waiting = [lease for lease in self.of_engine(engine) if not lease.is_complete]
            assert num_waiting == sum(len(lease.received) for lease in waiting)
