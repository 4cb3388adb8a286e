"""A cache for tenants, bounded in bytes, in which no tenant's use empties another's.

Owns the order of use and the sizes. Must not know what is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Owner = TypeVar("Owner", bound=Hashable)
Value = TypeVar("Value")


class _Kept(NamedTuple, Generic[Value]):
    value: Value
    num_bytes: int


class FairCache(Generic[Owner, Value]):
    """At most ``max_bytes`` for all owners together. If there is no room, the owner with the most
    bytes loses its least recently used value. A value that is larger than all the room is not
    kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[Owner, OrderedDict[bytes, _Kept[Value]]] = {}
        self._bytes: dict[Owner, int] = {}
        self.num_bytes = 0

    def get(self, owner: Owner, key: bytes) -> Value | None:
        of_owner = self._kept.get(owner)
        kept = None if of_owner is None else of_owner.get(key)
        if of_owner is None or kept is None:
            return None
        of_owner.move_to_end(key)
        return kept.value

    def put(self, owner: Owner, key: bytes, value: Value, num_bytes: int) -> None:
        """Keep ``value`` in place of one with the same key."""
        self.drop(owner, key)
        if num_bytes > self._max_bytes:
            return
        self._kept.setdefault(owner, OrderedDict())[key] = _Kept(value, num_bytes)
        self._bytes[owner] = self._bytes.get(owner, 0) + num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            most = max(self._bytes, key=lambda one: self._bytes[one])
            self.drop(most, next(iter(self._kept[most])))

    def drop(self, owner: Owner, key: bytes) -> None:
        """Remove a value; nothing happens if there is none."""
        of_owner = self._kept.get(owner)
        gone = None if of_owner is None else of_owner.pop(key, None)
        if gone is None:
            return
        self._bytes[owner] -= gone.num_bytes
        self.num_bytes -= gone.num_bytes
        if not of_owner:
            del self._kept[owner], self._bytes[owner]

    def check_invariants(self) -> None:
        """Assert that the sums equal what is kept and are within the limit."""
        for owner, kept in self._kept.items():
            assert kept, f"{owner!r} keeps nothing"
            assert self._bytes[owner] == sum(one.num_bytes for one in kept.values())
        assert self.num_bytes == sum(self._bytes.values()) <= max(0, self._max_bytes)
