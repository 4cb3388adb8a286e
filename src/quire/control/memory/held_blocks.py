"""Gives back the blocks that contents hold on each tier.

Owns the way from a content to its blocks. Does not know why a content is given up.
"""

from __future__ import annotations

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.lower_tier import LowerTier
from quire.control.memory.prefix_index import PrefixIndex


class HeldBlocks:
    """The blocks of one engine's contents."""

    def __init__(
        self, device: NumberPool, host_tier: LowerTier, disk_tier: LowerTier, index: PrefixIndex
    ) -> None:
        self._device = device
        self._host_tier = host_tier
        self._disk_tier = disk_tier
        self._index = index

    def discard(self, content: Content) -> None:
        """Free the blocks of ``content`` and remove it from the index."""
        if content.indexed:
            self._index.remove(content)
        self.free_all(content)

    def free_all(self, content: Content) -> None:
        self.free_device(content)
        if content.host_block is not None:
            self._free_lower(self._host_tier, content.host_block)
            content.host_block = None
        if content.disk_block is not None:
            self._free_lower(self._disk_tier, content.disk_block)
            content.disk_block = None

    def free_device(self, content: Content) -> None:
        if content.block is not None:
            self._device.free(content.block)
            content.block = None

    def _free_lower(self, tier: LowerTier, block: int) -> None:
        tier.keep(block)
        tier.pool.free(block)
