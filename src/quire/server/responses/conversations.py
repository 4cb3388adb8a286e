"""Conversations to which responses are added, per tenant.

Owns the limits on the items and bytes of one conversation: an item that makes it too large is
refused. Beyond the tenant's limits the least recently used conversations are dropped (``Shelves``).
Nothing is written to disk. Must not know how a response is made.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.core.errors import NeverWithinQuota, UnknownHandle
from quire.core.ids import TenantId
from quire.server.responses.shelves import ShelfLimits, Shelves

_BYTES_PER_ITEM = 1024
"""Estimated size of an item's objects, beside its text."""


@dataclass(frozen=True, slots=True)
class ConversationLimits:
    """Limits for each tenant, ``max_items`` for each conversation. ``ttl_s``: seconds since the
    last use."""

    ttl_s: float = 3600.0
    max_conversations: int = 1024
    max_items: int = 2048
    max_bytes: int = 64 << 20


@dataclass(slots=True, eq=False)
class StoredConversation:
    """A conversation; ``items`` in the form in which they are shown, oldest first."""

    id: str
    tenant: TenantId
    created_s: int
    metadata: Mapping[str, str]
    items: list[dict[str, Any]] = field(default_factory=list)
    used_s: float = 0.0
    num_bytes: int = 0

    @property
    def running(self) -> bool:
        """A conversation may be dropped at any time."""
        return False

    def item(self, item_id: str) -> dict[str, Any]:
        """Return an item. Raises ``UnknownHandle`` if there is none with this id."""
        for item in self.items:
            if item["id"] == item_id:
                return item
        raise UnknownHandle(f"conversation {self.id} has no item {item_id[:100]!r}")


class ConversationStore:
    """The conversations of all tenants. ``now_s`` is a monotonic clock, ``unix_s`` the time of
    day."""

    def __init__(
        self,
        limits: ConversationLimits,
        now_s: Callable[[], float],
        unix_s: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._unix_s = unix_s
        self._shelves: Shelves[StoredConversation] = Shelves(
            ShelfLimits(limits.ttl_s, limits.max_conversations, limits.max_bytes),
            now_s,
            on_drop=lambda _: None,
        )

    def create(
        self, tenant: TenantId, metadata: Mapping[str, str], items: Sequence[dict[str, Any]]
    ) -> StoredConversation:
        """Create a conversation. Raises ``NeverWithinQuota`` if it has too many items, or is too
        large."""
        entry = StoredConversation(
            f"conv_{secrets.token_hex(16)}", tenant, int(self._unix_s()), metadata
        )
        self._check(entry, items)
        self._shelves.put(entry)
        self.grow(entry, items)
        return entry

    def get(self, tenant: TenantId, conversation_id: str) -> StoredConversation:
        """Return a conversation. Raises ``UnknownHandle`` if it does not exist, or is another
        tenant's."""
        entry = self._shelves.find(tenant, conversation_id)
        if entry is None:
            raise UnknownHandle(
                f"no conversation {conversation_id[:100]!r} is stored: it has been deleted, or has "
                f"not been used for {self._limits.ttl_s:g} s"
            )
        return entry

    def add(self, entry: StoredConversation, items: Sequence[dict[str, Any]]) -> None:
        """Add items. Raises ``NeverWithinQuota`` if there are too many, or if they are too
        large."""
        self._check(entry, items)
        self.grow(entry, items)

    def check_room(self, entry: StoredConversation) -> None:
        """Raise ``NeverWithinQuota`` if nothing can be added."""
        self._check(entry, [{}])

    def grow(self, entry: StoredConversation, items: Sequence[dict[str, Any]]) -> None:
        """Add a response's items to ``entry``, unless it has been deleted meanwhile."""
        if not self._shelves.holds(entry):
            return
        entry.items += items
        self._shelves.count(entry, entry.num_bytes + _num_bytes(items))
        self._shelves.use(entry)
        self._shelves.make_room(entry)

    def remove(self, entry: StoredConversation, item_id: str) -> None:
        """Remove an item. Raises ``UnknownHandle`` if there is none with this id."""
        item = entry.item(item_id)
        entry.items.remove(item)
        self._shelves.count(entry, entry.num_bytes - _num_bytes([item]))

    def delete(self, entry: StoredConversation) -> None:
        self._shelves.drop(entry)

    def _check(self, entry: StoredConversation, items: Sequence[dict[str, Any]]) -> None:
        num_items, limits = len(entry.items) + len(items), self._limits
        num_bytes = entry.num_bytes + _num_bytes(items)
        if num_items > limits.max_items or num_bytes > limits.max_bytes:
            raise NeverWithinQuota(
                f"the conversation would have {num_items} items and {num_bytes} bytes, "
                f"{limits.max_items} and {limits.max_bytes} are allowed: begin another one",
                param="conversation",
            )


def _num_bytes(items: Sequence[dict[str, Any]]) -> int:
    return sum(len(msgspec.json.encode(item)) + _BYTES_PER_ITEM for item in items)
