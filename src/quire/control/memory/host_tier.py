"""The host tier of one engine: its blocks, and which of its contents are dropped for others.

Owns the order in which contents are dropped: those that nobody holds first (the prefix index alone
means them), then those that programs hold and whose tokens are known; among each, the one that came
first. A content in transfer is in neither list. Does not move anything.
"""

from __future__ import annotations

from collections import OrderedDict

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content


class HostTier:
    """``num_cachings``: how often a content became one that nobody holds."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = NumberPool(num_blocks)
        self._held: OrderedDict[int, Content] = OrderedDict()
        self._cached: OrderedDict[int, Content] = OrderedDict()
        self.num_cachings = 0

    @property
    def num_cached(self) -> int:
        """Blocks of contents that nobody holds."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks of contents that pages or exports refer to, or that transfers use."""
        return self.pool.num_taken - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that are free, or hold contents that can be recomputed."""
        droppable = sum(not content.num_pins for content in self._held.values())
        return self.pool.num_free + len(self._cached) + droppable

    def hold(self, content: Content) -> None:
        """``content`` has come to the host, or is there and has a reference again. Only one whose
        tokens are known may be dropped."""
        host_block = content.host_block
        if host_block is not None and not content.is_moving:
            self._cached.pop(host_block, None)
            if content.canonical and content.tokens:
                self._held[host_block] = content

    def cache(self, content: Content) -> None:
        """``content`` is there for the prefix index alone: keep it until its block is needed."""
        assert content.host_block is not None
        self._held.pop(content.host_block, None)
        self._cached[content.host_block] = content
        self.num_cachings += 1

    def offer(self, content: Content) -> None:
        """If nobody holds ``content``, drop it before all others."""
        host_block = content.host_block
        if host_block is not None and host_block in self._cached:
            self._cached.move_to_end(host_block, last=False)

    def keep(self, host_block: int) -> None:
        """The content of this block leaves the host, or is under way: it is not to be dropped."""
        self._held.pop(host_block, None)
        self._cached.pop(host_block, None)

    def first_cached(self) -> Content | None:
        """What is dropped first of the contents that nobody holds."""
        return next((c for c in self._cached.values() if not c.num_pins), None)

    def victim(self) -> Content | None:
        """What is dropped first, held contents included."""
        found = self.first_cached()
        return found or next((c for c in self._held.values() if not c.num_pins), None)

    def clear_cached(self) -> list[Content]:
        """The engine's memory is gone; returns the contents that nobody held."""
        cached = list(self._cached.values())
        self._cached.clear()
        return cached

    def check_invariants(self) -> None:
        self.pool.check_invariants()
        for host_block, content in [*self._held.items(), *self._cached.items()]:
            assert content.host_block == host_block, "a content does not know its host block"
            assert not content.is_moving, "a content under way may be dropped"
        assert all(c.num_refs or c.num_pins for c in self._held.values()), "nobody holds it"
        assert not any(content.num_refs for content in self._cached.values()), (
            "a content that somebody holds is dropped first"
        )
        assert all(content.indexed for content in self._cached.values()), (
            "a content is kept that nobody can find"
        )
