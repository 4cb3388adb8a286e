"""Which engines have the first page of a prompt in their prefix indexes.

Most prompts are known to one engine or to none, so a balancer with this list need not search the
index of every other. Owns the list alone; the indexes keep it up to date.
"""

from __future__ import annotations

from collections.abc import Collection

from quire.core.ids import EngineId


class ChainHeads:
    """Engines by the keys of pages that follow no other page. One for all engines of a controller:
    the same key means the same K and V on each of them."""

    def __init__(self) -> None:
        self._holders: dict[bytes, dict[EngineId, None]] = {}

    def add(self, key: bytes, engine: EngineId) -> None:
        """Note that ``engine`` has this page now."""
        holders = self._holders.get(key)
        if holders is None:
            self._holders[key] = {engine: None}
        else:
            holders[engine] = None

    def remove(self, key: bytes, engine: EngineId) -> None:
        """Note that ``engine`` no longer has this page."""
        holders = self._holders[key]
        del holders[engine]
        if not holders:
            del self._holders[key]

    def holders(self, key: bytes) -> Collection[EngineId]:
        """The engines that have this page."""
        return self._holders.get(key, ())

    def of(self, engine: EngineId) -> set[bytes]:
        """The keys that ``engine`` has. Reads the whole list."""
        return {key for key, holders in self._holders.items() if engine in holders}
