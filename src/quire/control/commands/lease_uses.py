"""Commands on leases that control carries out by itself: taking, renewing and closing one.

Owns what each does. Leases are opened, and sent to, by messages (``scheduler.exchange``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.control.commands.checks import require_page_quota
from quire.control.engines.leasing import end_lease
from quire.control.engines.state import EngineState
from quire.control.memory.leases import Lease, LeaseTable
from quire.control.memory.packed_tokens import pack_tokens
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.core.actions import ReplyValue
from quire.core.errors import InvalidArgument
from quire.core.ids import EngineId, ProgramId
from quire.core.lease_commands import (
    CloseLease,
    LeaseName,
    Pinned,
    PinPrefix,
    RenewLease,
    TakeLease,
)


class LeaseUses:
    """Carries out commands on leases. ``engines`` is shared with the controller. ``priced``: the
    engines on which pages may have a price."""

    def __init__(self, engines: Mapping[EngineId, EngineState], leases: LeaseTable) -> None:
        self._engines = engines
        self._leases = leases
        self.priced: dict[EngineId, None] = {}
        self.effects: Mapping[type[Any], Callable[[Entry, Any, float], ReplyValue]] = {
            RenewLease: self._renew,
            CloseLease: self._close,
            PinPrefix: self._pin,
        }

    def _find(self, entry: Entry, name: LeaseName) -> Lease:
        return self._leases.find(name, entry.program.tenant)

    def _renew(self, entry: Entry, command: RenewLease, now_s: float) -> None:
        self._leases.renew(self._find(entry, command.lease), now_s + command.ttl_s)

    def _close(self, entry: Entry, command: CloseLease, now_s: float) -> None:
        lease = self._find(entry, command.lease)
        end_lease(self._engines[lease.name.engine], self._leases, lease, "was cancelled")

    def _pin(self, entry: Entry, command: PinPrefix, now_s: float) -> Pinned:
        engine = self._engines[entry.queue.engine]
        index = engine.memory.index
        root = index.root_key(entry.program.tenant, engine.adapter_index(command.adapter))
        keys = index.keys(root, pack_tokens(command.tokens))
        num_pages = index.set_price(keys, command.price, now_s + command.ttl_s)
        self.priced[engine.id] = None
        return Pinned(num_tokens=num_pages * engine.page_size)

    def expire_prices(self, now_s: float) -> None:
        """End the prices whose time is over."""
        for engine in list(self.priced):
            index = self._engines[engine].memory.index
            index.expire_prices(now_s)
            if not index.num_priced:
                del self.priced[engine]

    def take(self, entry: Entry, command: TakeLease) -> int | None:
        """Map the lease's pages, end it and return how many pages it had. None: not all tokens have
        arrived."""
        tenant, count = entry.program.tenant, command.num_tokens
        lease = self._leases.find_with(command.lease, tenant, count)
        name = lease.name
        if name.engine != entry.queue.engine:
            raise InvalidArgument(
                f"lease {name.number} lives on engine {name.engine}, this queue on "
                f"{entry.queue.engine}: take it there"
            )
        if not lease.is_complete:
            return None
        engine = self._engines[name.engine]
        num_pages = -(-count // engine.page_size)
        require_page_quota(entry.program, num_pages)
        self._map(entry.pages[:num_pages], lease, engine, count, entry.program.family)
        end_lease(engine, self._leases, lease, "was taken")
        return num_pages

    def _map(
        self,
        pages: Sequence[Page],
        lease: Lease,
        engine: EngineState,
        num_tokens: int,
        family: ProgramId,
    ) -> None:
        size, position = engine.page_size, 0
        for page, content in zip(pages, lease.contents, strict=False):
            page.content = engine.memory.retain(content)
            content.note_family(family)
            page.fill = min(size, num_tokens - position)
            page.positions = list(range(position, position + page.fill))
            position += page.fill
