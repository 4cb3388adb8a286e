"""One engine's KV memory: contents over device blocks and host blocks.

Owns both pools, the prefix index and the effect of each transfer on its content. A content in
transfer counts as being on the host, but is not read, moved or dropped before the transfer's end;
both of its blocks stay taken until then. Memory does not know programs: when it has no free and no
cached blocks, it calls ``Reclaim`` of the caller who needs blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import ChainNode, Content
from quire.control.memory.host_tier import HostTier
from quire.control.memory.operations import OperationList
from quire.control.memory.pool_statistics import PoolStatistics
from quire.control.memory.prefix_index import PrefixIndex
from quire.control.memory.promises import Promises, Reclaim
from quire.control.memory.transfers import Location, Tier, Transfer, TransferTable
from quire.core.engine_info import EngineInfo
from quire.core.errors import ConfigError
from quire.core.ids import BlockId, EngineId, HostBlockId, ProgramId


class Memory:
    """The blocks of one engine. Operations are appended to ``operations``, in order."""

    def __init__(self, engine: EngineId, info: EngineInfo, operations: OperationList) -> None:
        self._engine = engine
        self._operations = operations
        self.transfers = TransferTable()
        self.promises = Promises()
        self._num_swapped_out = 0
        self._num_swapped_in = 0
        self._num_demoted = 0
        self._num_dropped = 0
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
        self.host_tier = HostTier(groups[0].num_host_blocks)
        self.host = self.host_tier.pool
        adapters = [adapter.digest for adapter in info.adapters]
        self.index = PrefixIndex(info.content, self.page_size, adapters)

    @property
    def num_available(self) -> int:
        """Blocks that are available without taking them from any program."""
        return self.device.num_free + self.index.num_cached

    @property
    def num_changes(self) -> int:
        """Increases with everything that makes blocks available."""
        return self.device.num_freed + self.host.num_freed + self.host_tier.num_cachings

    def retain(self, content: Content) -> Content:
        """Add a reference of a page or export to ``content``."""
        is_cached = content.num_refs == 0 and content.indexed
        content.num_refs += 1
        if is_cached:
            self.index.uncache(content)
            self.host_tier.hold(content)
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
        else:
            self._discard(content)

    def _discard(self, content: Content) -> None:
        """Free its blocks; the index forgets it."""
        if content.indexed:
            self.index.remove(content)
        self._free_device(content)
        self._free_host(content)

    def _free_device(self, content: Content) -> None:
        if content.block is not None:
            self.device.free(content.block)
            content.block = None

    def _free_host(self, content: Content) -> None:
        if content.host_block is not None:
            self.host_tier.keep(content.host_block)
            self.host.free(content.host_block)
            content.host_block = None

    def lose(self, content: Content) -> None:
        """Discard ``content`` on every tier, because its values are not valid."""
        if content.is_moving:
            self._forget_moving(content)
        self._discard(content)

    def _forget_moving(self, content: Content) -> None:
        """The transfer continues without its content."""
        assert content.transfer is not None
        self.transfers.get(content.transfer).content = None
        content.transfer, content.host_block = None, None

    def make_room(self, num_blocks: int, reclaim: Reclaim) -> bool:
        """Whether ``num_blocks`` are free for ``reclaim``. Cached contents are evicted first, then
        ``reclaim`` takes blocks from others. If blocks become free only at the ends of transfers,
        which have begun, they are promised to ``reclaim`` and the result is False."""
        if not num_blocks:
            return True
        while not self._has_room(num_blocks, reclaim):
            evicted = self.index.pop_least_recent()
            if evicted is None:
                break
            self._free_device(evicted)
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

    def swap_in(self, content: Content, program: ProgramId | None = None) -> None:
        """Begin the transfer of ``content`` to the device, for ``program``; ``make_room`` has been
        called."""
        host_block, block = content.host_block, self.device.take()
        assert host_block is not None
        assert block is not None, "a swap in without room"
        self.host_tier.keep(host_block)
        transfer = self._begin(content, Tier.HOST, host_block, Tier.DEVICE, block, program)
        self._operations.swap_in(transfer, host_block, BlockId(block))

    def can_move_out(self, content: Content) -> bool:
        return content.block is not None and not content.num_pins

    def move_out(self, content: Content, program: ProgramId | None = None) -> bool:
        """Free the device block of a referenced content, which ``program`` holds; returns False if
        no tier takes the content.

        If the host has room, a transfer begins, at whose end the block is free. Else a canonical
        content is dropped, because its tokens are known: its block is free at once.
        """
        block = content.block
        assert block is not None
        assert content.num_pins == 0
        host_block = self._take_host_block(self.host_tier.victim())
        if host_block is not None:
            self._swap_out(content, block, host_block, program)
            return True
        if content.canonical and content.tokens:
            self._num_dropped += 1
        else:
            return False
        self._free_device(content)
        if content.indexed:
            self.index.remove(content)
        return True

    def demote(self, content: Content) -> bool:
        """Begin to move a cached content to the host; returns False if the host has no block but
        those that programs hold. Its block is free at the transfer's end."""
        block = content.block
        assert block is not None
        assert not content.num_refs
        assert not content.num_pins
        host_block = self._take_host_block(self.host_tier.first_cached())
        if host_block is None:
            return False
        self.index.uncache(content)
        self._swap_out(content, block, host_block, None if content.is_shared else content.family)
        self._num_demoted += 1
        return True

    def evict(self, content: Content) -> None:
        """Drop a cached content."""
        self.index.note_evicted()
        self._discard(content)

    def _swap_out(
        self, content: Content, block: BlockId, host_block: HostBlockId, program: ProgramId | None
    ) -> None:
        transfer = self._begin(content, Tier.DEVICE, block, Tier.HOST, host_block, program)
        self._operations.swap_out(transfer, block, host_block)
        content.block, content.host_block = None, host_block

    def offer(self, leaf: ChainNode) -> None:
        """Evict the unreferenced contents of this chain before all others, on either tier, its end
        first; what other families have mapped too stays where it is."""
        for content in self.index.offer(leaf):
            self.host_tier.offer(content)

    def _begin(
        self,
        content: Content,
        tier: Tier,
        block: int,
        target_tier: Tier,
        target: int,
        program: ProgramId | None,
    ) -> int:
        source = Location(self._engine, tier, block)
        to = Location(self._engine, target_tier, target)
        content.transfer = self.transfers.begin(content, source, to, program).id
        return content.transfer

    def is_coming(self, content: Content) -> bool:
        """Whether ``content`` is in transfer to the device, where its block is taken already."""
        transfer = content.transfer
        return transfer is not None and not self.transfers.get(transfer).leaves_device

    def end_transfers(self, transfers: Iterable[int]) -> list[Transfer]:
        """Move the contents to their targets and free their sources; returns the transfers.

        Raises:
            EngineFault: a number that is not that of a transfer in progress.
        """
        ended = []
        for transfer_id in transfers:
            transfer = self.transfers.end(transfer_id)
            ended.append(transfer)
            source, target, content = transfer.source, transfer.target, transfer.content
            self._pool(source).free(source.block)
            self._num_swapped_out += transfer.leaves_device
            self._num_swapped_in += not transfer.leaves_device
            if content is None:
                self._pool(target).free(target.block)
                continue
            content.transfer = None
            if target.tier is Tier.DEVICE:
                content.block, content.host_block = BlockId(target.block), None
            elif content.num_refs:
                self.host_tier.hold(content)
            if not content.num_refs and not content.num_pins:
                self._settle(content)
        return ended

    def _pool(self, place: Location) -> NumberPool:
        return self.device if place.tier is Tier.DEVICE else self.host

    def _take_host_block(self, victim: Content | None) -> HostBlockId | None:
        """A host block; if none is free, that of ``victim``, which is dropped."""
        host_block = self.host.take()
        if host_block is None and victim is not None:
            self._discard(victim)
            self._num_dropped += 1
            host_block = self.host.take()
        return None if host_block is None else HostBlockId(host_block)

    def add_to_index(self, contents: Iterable[Content]) -> None:
        for content in contents:
            if not content.indexed and content.node is not None and not content.is_lost:
                self.index.insert(content)

    def lose_everything(self, contents: Iterable[Content]) -> None:
        """The engine is gone and its memory with it. ``contents``: all that pages or exports refer
        to."""
        for transfer in self.transfers.abandon():
            self._pool(transfer.source).free(transfer.source.block)
            self._pool(transfer.target).free(transfer.target.block)
            if transfer.content is not None:
                transfer.content.transfer, transfer.content.host_block = None, None
        self.promises.clear()
        for content in [*self.index.clear(), *self.host_tier.clear_cached()]:
            self._free_device(content)
            self._free_host(content)
        for content in contents:
            self._free_device(content)
            self._free_host(content)

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            num_blocks=self.device.size,
            num_free=self.device.num_free,
            num_cached=self.index.num_cached,
            num_held=self.device.num_taken - self.index.num_cached,
            num_host_blocks=self.host.size,
            num_host_free=self.host.num_free,
            num_host_cached=self.host_tier.num_cached,
            num_transfers=len(self.transfers),
            num_swapped_out=self._num_swapped_out,
            num_swapped_in=self._num_swapped_in,
            num_demoted=self._num_demoted,
            num_dropped=self._num_dropped,
            bytes_per_block=self._bytes_per_block,
        )

    def check_invariants(self, held: Iterable[Content]) -> None:
        """``held``: every content to which a page or an export refers, once each."""
        self.device.check_invariants()
        self.host_tier.check_invariants()
        self.index.check_invariants()
        contents = {id(content): content for content in [*held, *self.index.contents()]}
        places = [place for t in self.transfers for place in (t.source, t.target)]
        blocks = [place.block for place in places if place.tier is Tier.DEVICE]
        blocks += [c.block for c in contents.values() if c.block is not None]
        hosts = [place.block for place in places if place.tier is Tier.HOST]
        hosts += [
            c.host_block for c in contents.values() if c.host_block is not None and not c.is_moving
        ]
        moving = {id(t.content) for t in self.transfers if t.content is not None}
        assert all(c.is_moving == (id(c) in moving) for c in contents.values()), (
            "a content does not know whether it is under way"
        )
        assert not any(c.is_moving and c.block is not None for c in contents.values()), (
            "a content under way can be read"
        )
        num_unused = sum(
            not (c.num_refs or c.num_pins or c.is_moving or c.host_block is None)
            for c in self.index.contents()
        )
        assert num_unused <= self.host_tier.num_cached, "an unreferenced content is not cached"
        assert len(set(blocks)) == len(blocks), "two contents share a block"
        assert len(set(hosts)) == len(hosts), "two contents share a host block"
        assert all(self.device.is_taken(block) for block in blocks), "a held block is free"
        assert all(self.host.is_taken(block) for block in hosts), "a held host block is free"
