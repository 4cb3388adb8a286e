"""A tier below the device, host or disk: its blocks, and the order in which its contents make way.

Owns that order: contents without a holder first (only the prefix index refers to them), then those
that programs hold and whose tokens are known; within each group, the content that came first. The
rest may be moved on, but not dropped. A content in transfer is in none of the lists, and one whose
block is lent makes way for none: its block would not be free. Does not move anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

from quire.control.memory.blocks import LendingPool
from quire.control.memory.content import Content
from quire.control.memory.transfers import Tier


class LowerTier:
    """One tier. ``num_cachings``: how often a content became one without a holder."""

    def __init__(self, tier: Tier, num_blocks: int) -> None:
        self.tier = tier
        self.pool = LendingPool(num_blocks)
        self._is_disk = tier is Tier.DISK
        self._held: OrderedDict[int, Content] = OrderedDict()
        self._cached: OrderedDict[int, Content] = OrderedDict()
        self._opaque: OrderedDict[int, Content] = OrderedDict()
        self.num_cachings = 0

    def block_of(self, content: Content) -> int | None:
        """The block of ``content`` on this tier, if it has one."""
        return content.disk_block if self._is_disk else content.host_block

    @property
    def num_cached(self) -> int:
        """Blocks of contents without a holder."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks of contents that pages or exports refer to, or that transfers use."""
        return self.pool.num_taken - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that are free, or hold contents that can be recomputed."""
        droppable = sum(self._may_go(content) for content in self._held.values())
        return self.pool.num_free + self._num_cached_to_go + droppable

    def hold(self, content: Content) -> None:
        """Note that ``content`` has arrived here, or has a reference again. Only one whose tokens
        are known may be dropped."""
        block = self.block_of(content)
        if block is not None and not content.is_moving:
            self._cached.pop(block, None)
            held = self._held if content.canonical and content.tokens else self._opaque
            held[block] = content

    def cache(self, content: Content) -> None:
        """Keep ``content``, to which only the prefix index refers, until its block is needed."""
        block = self.block_of(content)
        assert block is not None
        self._held.pop(block, None)
        self._cached[block] = content
        self.num_cachings += 1

    def offer(self, content: Content) -> None:
        """If ``content`` has no holder, drop it before all others."""
        block = self.block_of(content)
        if block is not None and block in self._cached:
            self._cached.move_to_end(block, last=False)

    def keep(self, block: int) -> None:
        """Take the content of ``block`` out of the order: it leaves the tier, or a transfer uses
        it."""
        self._held.pop(block, None)
        self._cached.pop(block, None)
        self._opaque.pop(block, None)

    def first_cached(self) -> Content | None:
        """The content without a holder that is dropped first."""
        return next(filter(self._may_go, self._cached.values()), None)

    def victim(self) -> Content | None:
        """The content that is dropped first, held contents included."""
        found = self.first_cached()
        return found or next(filter(self._may_go, self._held.values()), None)

    def in_order(self) -> Iterator[Content]:
        """The contents that make way for others, in order; those that cannot be dropped come
        last."""
        everything = chain(self._cached.values(), self._held.values(), self._opaque.values())
        return filter(self._may_go, everything)

    def _may_go(self, content: Content) -> bool:
        """Whether ``content`` may leave its block, which is free then."""
        if content.num_pins:
            return False
        lent, block = self.pool.lent, self.block_of(content)
        return not lent or block not in lent

    @property
    def _num_cached_to_go(self) -> int:
        return len(self._cached) - sum(block in self._cached for block in self.pool.lent)

    def clear_cached(self) -> list[Content]:
        """Forget and return the contents without a holder, as the engine's memory is lost."""
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
