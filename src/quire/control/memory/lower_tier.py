"""A tier below the device, host or disk: its blocks, and which of its contents make way for others.

Owns the order in which contents make way: those that nobody holds first (the prefix index alone
means them), then those that programs hold and whose tokens are known; among each, the one that came
first. The rest may be moved on, but not dropped. A content in transfer is in none of the lists.
Does not move anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.transfers import Tier


class LowerTier:
    """``num_cachings``: how often a content became one that nobody holds."""

    def __init__(self, tier: Tier, num_blocks: int) -> None:
        self.tier = tier
        self.pool = NumberPool(num_blocks)
        self._is_disk = tier is Tier.DISK
        self._held: OrderedDict[int, Content] = OrderedDict()
        self._cached: OrderedDict[int, Content] = OrderedDict()
        self._opaque: OrderedDict[int, Content] = OrderedDict()
        self.num_cachings = 0

    def block_of(self, content: Content) -> int | None:
        """Its block here, if it has one."""
        return content.disk_block if self._is_disk else content.host_block

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
        """``content`` has come here, or is here and has a reference again. Only one whose tokens
        are known may be dropped."""
        block = self.block_of(content)
        if block is not None and not content.is_moving:
            self._cached.pop(block, None)
            held = self._held if content.canonical and content.tokens else self._opaque
            held[block] = content

    def cache(self, content: Content) -> None:
        """``content`` is here for the prefix index alone: keep it until its block is needed."""
        block = self.block_of(content)
        assert block is not None
        self._held.pop(block, None)
        self._cached[block] = content
        self.num_cachings += 1

    def offer(self, content: Content) -> None:
        """If nobody holds ``content``, drop it before all others."""
        block = self.block_of(content)
        if block is not None and block in self._cached:
            self._cached.move_to_end(block, last=False)

    def keep(self, block: int) -> None:
        """The content of this block leaves the tier, or is under way: it does not make way."""
        self._held.pop(block, None)
        self._cached.pop(block, None)
        self._opaque.pop(block, None)

    def first_cached(self) -> Content | None:
        """What is dropped first of the contents that nobody holds."""
        return next((c for c in self._cached.values() if not c.num_pins), None)

    def victim(self) -> Content | None:
        """What is dropped first, held contents included."""
        found = self.first_cached()
        return found or next((c for c in self._held.values() if not c.num_pins), None)

    def in_order(self) -> Iterator[Content]:
        """What makes way for others, in order; what cannot be dropped comes last."""
        for content in chain(self._cached.values(), self._held.values(), self._opaque.values()):
            if not content.num_pins:
                yield content

    def clear_cached(self) -> list[Content]:
        """The engine's memory is gone; returns the contents that nobody held."""
        cached = list(self._cached.values())
        self._cached.clear()
        return cached

    def check_invariants(self) -> None:
        self.pool.check_invariants()
        held = [*self._held.items(), *self._opaque.items()]
        for block, content in [*held, *self._cached.items()]:
            assert self.block_of(content) == block, f"a content does not know its {self.tier} block"
            assert not content.is_moving, "a content under way may be dropped"
        assert all(c.num_refs or c.num_pins for _, c in held), "nobody holds it"
        assert not any(content.num_refs for content in self._cached.values()), (
            "a content that somebody holds is dropped first"
        )
        assert all(content.indexed for content in self._cached.values()), (
            "a content is kept that nobody can find"
        )
