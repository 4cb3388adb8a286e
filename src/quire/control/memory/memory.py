"""One engine's KV memory: contents over device blocks, host blocks and disk blocks.

Owns the pools, the prefix index and the effect of each transfer on its content. A content in
transfer counts as being on the lower of its tiers, but is not read, moved or dropped before the
transfer's end; both of its blocks stay taken until then. What is on the disk comes back to the
device itself, so that nothing waits for room on the host. Memory does not know programs: when it
has no free and no cached blocks, it calls ``Reclaim`` of the caller who needs blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from quire.control.memory.blocks import NumberPool
from quire.control.memory.chain_heads import ChainHeads
from quire.control.memory.content import ChainNode, Content
from quire.control.memory.descent import Descent
from quire.control.memory.disk_tier import DiskTier
from quire.control.memory.held_blocks import HeldBlocks
from quire.control.memory.index_journal import IndexJournal
from quire.control.memory.lower_tier import LowerTier
from quire.control.memory.move_counts import MoveCounts
from quire.control.memory.movement import Movement
from quire.control.memory.operations import OperationList
from quire.control.memory.place_invariants import check_places
from quire.control.memory.pool_statistics import PoolStatistics
from quire.control.memory.prefix_index import PrefixIndex
from quire.control.memory.promises import PromisedBlocks, Reclaim
from quire.control.memory.transfers import Tier, Transfer, TransferTable
from quire.core.engine_info import EngineInfo
from quire.core.errors import ConfigError
from quire.core.ids import BlockId, EngineId, HostBlockId, ProgramId


class Memory:
    """The blocks of one engine. Operations are appended to ``operations``, in order. ``heads``:
    shared by all engines, if there are others. ``descent``: moves contents to lower tiers."""

    def __init__(
        self,
        engine: EngineId,
        info: EngineInfo,
        operations: OperationList,
        heads: ChainHeads | None = None,
    ) -> None:
        self._engine = engine
        self.heads = heads or ChainHeads()
        self._operations = operations
        self.transfers = TransferTable()
        self.promises = PromisedBlocks()
        self._counts = MoveCounts()
        self._journal = IndexJournal()
        self.resize(info)

    def resize(self, info: EngineInfo) -> None:
        """Create empty pools of the engine's sizes. Nothing may reside in the old ones.

        Raises:
            ConfigError: the engine's layer groups are not exactly one group of full attention.
        """
        groups = info.pool.groups
        if len(groups) != 1 or groups[0].kind != "full":
            raise ConfigError(
                f"engine {info.model} has layer groups {[group.kind for group in groups]}; this "
                "controller serves exactly one group of full attention: choose another model"
            )
        self.page_size = info.pool.page_size
        self._bytes_per_block = groups[0].bytes_per_block
        self.device = NumberPool(groups[0].num_blocks)
        self.host_tier = LowerTier(Tier.HOST, groups[0].num_host_blocks)
        self.host = self.host_tier.pool
        self.disk_tier = DiskTier(groups[0].num_disk_blocks)
        self._lower_tiers = (self.host_tier, self.disk_tier)
        self._movement = Movement(
            self._engine,
            self._operations,
            self.transfers,
            self._counts,
            self.device,
            self.host_tier,
            self.disk_tier,
        )
        adapters = [adapter.digest for adapter in info.adapters]
        self._journal.forget()
        self.index = PrefixIndex(
            info.content,
            self.page_size,
            adapters,
            self._journal,
            self.device.size,
            self._engine,
            self.heads,
        )
        self._blocks = HeldBlocks(self.device, self.host_tier, self.disk_tier, self.index)
        self.descent = Descent(
            self._movement,
            self.host_tier,
            self.disk_tier,
            self.index,
            self._blocks,
            self._counts,
        )

    @property
    def num_available(self) -> int:
        """Blocks that are available without taking them from any program."""
        return self.device.num_free + self.index.num_cached

    @property
    def num_changes(self) -> int:
        """A number that increases with everything that makes blocks available, or ends the hope for
        them."""
        num_changes = self.device.num_freed + self._counts.num_failed_writes
        for tier in self._lower_tiers:
            num_changes += tier.pool.num_freed + tier.num_cachings
        return num_changes

    @property
    def num_cached_below(self) -> int:
        """The number of contents on lower tiers without a holder."""
        return self.host_tier.num_cached + self.disk_tier.num_cached

    @property
    def num_available_below(self) -> int:
        """Blocks below the device for contents that cannot be computed again."""
        return self.host_tier.num_available + self.disk_tier.num_open

    def retain(self, content: Content) -> Content:
        """Add a reference of a page or export to ``content``."""
        if content.num_refs == 0 and content.indexed:
            self.index.uncache(content)
            if content.block is None:
                for tier in self._lower_tiers:
                    tier.hold(content)
        content.num_refs += 1
        return content

    def release(self, content: Content) -> None:
        """Remove a reference. Without any, the memory is freed, or stays cached if the content is
        indexed."""
        assert content.num_refs > 0, "a content is released twice"
        content.num_refs -= 1
        if content.num_refs == 0 and content.num_pins == 0:
            self._settle(content)

    def pin(self, content: Content) -> None:
        content.num_pins += 1

    def pin_all(self, contents: Iterable[Content]) -> None:
        for content in contents:
            content.num_pins += 1

    def unpin_all(self, contents: Iterable[Content]) -> None:
        for content in contents:
            if content.num_pins == 1 and not content.num_refs:
                self.unpin(content)  # the last pin of a content without references
            else:
                assert content.num_pins > 0, "a content is unpinned twice"
                content.num_pins -= 1

    def unpin(self, content: Content) -> None:
        assert content.num_pins > 0, "a content is unpinned twice"
        content.num_pins -= 1
        if content.num_refs == 0 and content.num_pins == 0:
            self._settle(content)

    def _settle(self, content: Content) -> None:
        """``content`` has no references and no pins: cache it where it is, or free it. A content
        in transfer is settled at the transfer's end."""
        if content.is_moving:
            return
        if content.indexed and content.block is not None:
            self.index.cache(content)
        elif content.indexed and content.host_block is not None:
            self.host_tier.cache(content)
        elif content.indexed and content.disk_block is not None:
            self.disk_tier.cache(content)
        else:
            self._blocks.discard(content)

    def lose(self, content: Content) -> None:
        """Discard ``content`` on every tier, because its values are not valid."""
        if content.is_moving:
            self._movement.forget(content)
        self._blocks.discard(content)

    def make_room(self, num_blocks: int, reclaim: Reclaim) -> bool:
        """Return whether ``num_blocks`` are free for ``reclaim``. Cached contents are evicted
        first, then ``reclaim`` takes blocks from others. If blocks become free only at the ends of
        transfers, which have begun, they are promised to ``reclaim`` and the result is False."""
        if not num_blocks:
            return True
        while not self._has_room(num_blocks, reclaim):
            evicted = self.index.pop_least_recent()
            if evicted is None:
                break
            self._blocks.free_device(evicted)
        while (num_missing := num_blocks - self._num_to_come(reclaim)) > 0:
            if not reclaim.give_up(num_missing):
                return False
        if not self._has_room(num_blocks, reclaim):
            self.promise(num_blocks, reclaim)
            return False
        if self.promises and reclaim.order is not None:
            self.promises.drop(reclaim.order)
        return True

    def promise(self, num_blocks: int, reclaim: Reclaim) -> None:
        """Reserve ``num_blocks`` of the blocks that are free, or become free, for ``reclaim``."""
        if num_blocks and reclaim.order is not None:
            self.promises.give(reclaim.order, num_blocks)

    def _num_to_come(self, reclaim: Reclaim) -> int:
        """Blocks that are free or become free by transfers in progress, without those promised to
        more senior claims."""
        num_blocks = self.device.num_free + self.transfers.num_leaving
        return num_blocks - self.promises.ahead_of(reclaim.order) if self.promises else num_blocks

    def _has_room(self, num_blocks: int, reclaim: Reclaim) -> bool:
        num_free = self.device.num_free
        if num_free < num_blocks:
            return False
        return not self.promises or self._num_to_come(reclaim) >= num_blocks

    def bind(self, content: Content) -> None:
        """Give ``content`` a device block; ``make_room`` has been called."""
        block = self.device.take()
        assert block is not None, "bind without room"
        content.block = BlockId(block)

    def bring(self, content: Content, program: ProgramId | None = None) -> None:
        """Begin the transfer of ``content`` to the device, for ``program``; ``make_room`` has been
        called."""
        self._movement.bring(content, program)

    def rests_on_host(self, content: Content) -> bool:
        """Whether ``content`` is on the host, and in no transfer."""
        return content.host_block is not None and not content.is_moving

    def lend(self, content: Content) -> HostBlockId:
        """Let a send read the host block of ``content``, which rests there. The content itself may
        come to the device or end meanwhile; its block is free only after ``give_back``."""
        block = content.host_block
        assert block is not None
        self.host.lend(block)
        return block

    def give_back(self, host_block: HostBlockId) -> None:
        """Note that a send reads ``host_block`` no longer."""
        self.host.give_back(host_block)

    def can_move_out(self, content: Content) -> bool:
        return content.block is not None and not content.num_pins

    def evict(self, content: Content) -> None:
        """Drop a cached content."""
        self.index.note_evicted()
        self._blocks.discard(content)

    def offer(self, leaf: ChainNode) -> None:
        """Evict the unreferenced contents of this chain before all others, on every tier, its end
        first; contents that other families have mapped too keep their turn."""
        for content in self.index.offer(leaf):
            for tier in self._lower_tiers:
                tier.offer(content)

    def is_coming(self, content: Content) -> bool:
        """Whether ``content`` is in transfer to the device, where its block is taken already."""
        transfer = content.transfer
        return transfer is not None and self.transfers.get(transfer).comes_to_device

    def end_transfers(
        self, transfers: Iterable[int], failed: Collection[int] = ()
    ) -> list[Transfer]:
        """Move the contents to their targets and free their sources; returns the transfers. Of
        those that have ``failed``, a content that was to be written to the disk stays where it is,
        and one that was to be read from it is lost.

        Raises:
            EngineFault: a number that is not that of a transfer in progress.
        """
        ended = []
        for transfer_id in transfers:
            transfer = self._movement.end(transfer_id, has_failed=transfer_id in failed)
            ended.append(transfer)
            if transfer.content is not None:
                self._arrived(transfer.content)
        return ended

    def _arrived(self, content: Content) -> None:
        """Settle ``content`` after its transfer: on a tier, or lost, because reading it has
        failed."""
        if not content.num_refs and not content.num_pins:
            self._settle(content)
        elif content.is_lost and content.indexed:
            self.index.remove(content)
        elif content.num_refs:
            for tier in self._lower_tiers:
                tier.hold(content)

    def add_to_index(self, contents: Iterable[Content]) -> None:
        for content in contents:
            if not content.indexed and content.node is not None and not content.is_lost:
                self.index.insert(content)

    def lose_everything(self, contents: Iterable[Content]) -> None:
        """Forget everything, as the engine's memory is lost. ``contents``: all that pages or
        exports refer to."""
        self._movement.abandon()
        self.promises.clear()
        cached = self.index.clear()
        for tier in self._lower_tiers:
            cached += tier.clear_cached()
        for content in [*cached, *contents]:
            self._blocks.free_all(content)

    def statistics(self) -> PoolStatistics:
        disk, counts = self.disk_tier, self._counts
        return PoolStatistics(
            num_blocks=self.device.size,
            num_free=self.device.num_free,
            num_cached=self.index.num_cached,
            num_held=self.device.num_taken - self.index.num_cached,
            num_host_blocks=self.host.size,
            num_host_free=self.host.num_free,
            num_host_cached=self.host_tier.num_cached,
            num_transfers=len(self.transfers),
            num_disk_blocks=disk.pool.size,
            num_disk_free=disk.pool.num_free,
            num_disk_cached=disk.num_cached,
            is_disk_open=disk.is_open,
            num_swapped_out=counts.num_swapped_out,
            num_swapped_in=counts.num_swapped_in,
            num_demoted=counts.num_demoted,
            num_dropped=counts.num_dropped,
            num_disk_written=counts.num_disk_written,
            num_disk_read=counts.num_disk_read,
            num_failed_writes=counts.num_failed_writes,
            num_failed_reads=counts.num_failed_reads,
            bytes_per_block=self._bytes_per_block,
        )

    def check_invariants(self, held: Iterable[Content]) -> None:
        """Assert that pools, tiers and index agree. ``held``: every content to which a page or an
        export refers, once each."""
        self.device.check_invariants()
        for tier in self._lower_tiers:
            tier.check_invariants()
        self.index.check_invariants()
        contents = {id(content): content for content in [*held, *self.index.contents()]}
        check_places(contents.values(), self.transfers, self.device, self._lower_tiers)
        num_unused = sum(
            not (c.num_refs or c.num_pins or c.is_moving or c.block is not None)
            for c in self.index.contents()
        )
        num_cached = sum(tier.num_cached for tier in self._lower_tiers)
        assert num_unused <= num_cached, "an unreferenced content is not cached"
