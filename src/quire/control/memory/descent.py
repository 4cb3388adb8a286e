"""The way down: contents leave the device for the host or the disk, or are dropped.

Owns which tier takes a content and what makes room there. ``movement`` begins the transfers; the
scheduler decides which contents leave the device, and when.
"""

from __future__ import annotations

from quire.control.memory.content import Content
from quire.control.memory.disk_tier import DiskTier
from quire.control.memory.held_blocks import HeldBlocks
from quire.control.memory.lower_tier import LowerTier
from quire.control.memory.move_counts import MoveCounts
from quire.control.memory.movement import Movement
from quire.control.memory.prefix_index import PrefixIndex
from quire.control.memory.transfers import Tier
from quire.core.ids import DiskBlockId, HostBlockId, ProgramId


class Descent:
    """Moves the contents of one engine to lower tiers."""

    def __init__(
        self,
        movement: Movement,
        host_tier: LowerTier,
        disk_tier: DiskTier,
        index: PrefixIndex,
        blocks: HeldBlocks,
        counts: MoveCounts,
    ) -> None:
        self._movement = movement
        self._host_tier = host_tier
        self._disk_tier = disk_tier
        self._index = index
        self._blocks = blocks
        self._counts = counts

    def move_out(self, content: Content, program: ProgramId | None = None) -> bool:
        """Free the device block of a referenced content, which ``program`` holds; returns False if
        no tier takes the content.

        If the host or the disk has room, a transfer begins, and the block is free at its end.
        Otherwise a canonical content is dropped, because its tokens are known: its block is free at
        once.
        """
        assert content.num_pins == 0
        disk = self._disk_tier
        if (
            self._to_host(content, self._host_tier.first_cached(), program)
            or (disk.takes(content) and self._to_disk(content, disk.place_for(content), program))
            or self._to_host(content, self._host_tier.victim(), program)
        ):
            return True
        if not (content.canonical and content.tokens):
            return False
        self._counts.num_dropped += 1
        self._blocks.free_device(content)
        if content.indexed:
            self._index.remove(content)
        return True

    def demote(self, content: Content, tier: Tier = Tier.HOST) -> bool:
        """Begin to move a cached content from the device to ``tier``; returns False if all blocks
        of the tier are held by programs. The device block is free at the transfer's end."""
        assert not content.num_refs
        assert not content.num_pins
        program = None if content.is_shared else content.family
        if tier is Tier.HOST:
            has_begun = self._to_host(content, self._host_tier.first_cached(), program)
        else:
            has_begun = self._to_disk(content, self._disk_tier.first_cached(), program)
        if has_begun:
            self._index.uncache(content)
            self._counts.num_demoted += 1
        return has_begun

    def spill(self, content: Content) -> bool:
        """Begin to move a content from the host to the disk; returns False if all blocks of the
        disk are held by programs."""
        assert content.num_pins == 0
        program = None if content.is_shared else content.family
        return self._to_disk(content, self._disk_tier.first_cached(), program)

    def _to_host(self, content: Content, victim: Content | None, program: ProgramId | None) -> bool:
        """Move from the device to a free host block, or else to that of ``victim``."""
        host_block = self._take(self._host_tier, victim)
        if host_block is not None:
            self._movement.to_host(content, HostBlockId(host_block), program)
        return host_block is not None

    def _to_disk(self, content: Content, victim: Content | None, program: ProgramId | None) -> bool:
        """Move from the device or the host to a free disk block, or else to that of ``victim``."""
        disk_block = self._take(self._disk_tier, victim)
        if disk_block is not None:
            self._movement.to_disk(content, DiskBlockId(disk_block), program)
        return disk_block is not None

    def _take(self, tier: LowerTier, victim: Content | None) -> int | None:
        """A block of ``tier``; if none is free, that of ``victim``, which is dropped."""
        block = tier.pool.take()
        if block is None and victim is not None:
            self._blocks.discard(victim)
            self._counts.num_dropped += 1
            block = tier.pool.take()
        return block
