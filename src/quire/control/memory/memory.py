"""One engine's KV memory: contents over device blocks and host blocks.

Owns both pools, the prefix index and every move between tiers. It does not know programs: when its
own means are used up (free, then cached blocks) it asks its ``Reclaimer``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.operations import OperationList
from quire.control.memory.prefix_index import PrefixIndex
from quire.core.engine_info import EngineInfo
from quire.core.errors import ConfigError
from quire.core.ids import BlockId, HostBlockId

Reclaim = Callable[[int], bool]
"""Try to make so many blocks free; False when nothing more can be given up."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """``num_held``: blocks that pages or exports mean; ``num_cached``: kept for the index only."""

    num_blocks: int
    num_free: int
    num_cached: int
    num_held: int
    num_host_blocks: int
    num_host_free: int
    num_swapped_out: int
    num_swapped_in: int
    num_dropped: int


class Memory:
    """Blocks of one engine. Operations go to ``operations``, in order."""

    def __init__(self, info: EngineInfo, operations: OperationList) -> None:
        self._operations = operations
        self._host_droppable: OrderedDict[int, Content] = OrderedDict()
        self._num_swapped_out = 0
        self._num_swapped_in = 0
        self._num_dropped = 0
        self.resize(info)

    def resize(self, info: EngineInfo) -> None:
        """Empty pools of the engine's sizes. Nothing may reside in the old ones.

        Raises:
            ConfigError: the engine has other layer groups than one of full attention.
        """
        groups = info.pool.groups
        if len(groups) != 1 or groups[0].kind != "full":
            raise ConfigError(
                f"engine {info.model} has layer groups {[group.kind for group in groups]}; this "
                "controller serves exactly one group of full attention: choose another model"
            )
        self.page_size = info.pool.page_size
        self.device = NumberPool(groups[0].num_blocks)
        self.host = NumberPool(groups[0].num_host_blocks)
        adapters = [adapter.digest for adapter in info.adapters]
        self.index = PrefixIndex(info.digest, self.page_size, adapters)

    @property
    def num_available(self) -> int:
        """Blocks that can be had without taking them from any program."""
        return self.device.num_free + self.index.num_cached

    @property
    def num_host_available(self) -> int:
        """Host blocks that are free, or hold what can be computed again."""
        droppable = sum(not content.num_pins for content in self._host_droppable.values())
        return self.host.num_free + droppable

    def retain(self, content: Content) -> Content:
        """One more page or export means ``content``."""
        if content.num_refs == 0 and content.indexed:
            self.index.uncache(content)
        content.num_refs += 1
        return content

    def release(self, content: Content) -> None:
        """One fewer. The last one frees the memory, or leaves it cached."""
        assert content.num_refs > 0, "a content is released twice"
        content.num_refs -= 1
        if content.num_refs == 0 and content.num_pins == 0:
            self._settle(content)

    def pin(self, content: Content) -> None:
        content.num_pins += 1

    def unpin_all(self, contents: Iterable[Content]) -> None:
        for content in contents:
            if content.num_pins == 1 and not content.num_refs:
                self.unpin(content)  # the last use of what nobody means
            else:
                assert content.num_pins > 0, "a content is unpinned twice"
                content.num_pins -= 1

    def unpin(self, content: Content) -> None:
        assert content.num_pins > 0, "a content is unpinned twice"
        content.num_pins -= 1
        if content.num_refs == 0 and content.num_pins == 0:
            self._settle(content)

    def _settle(self, content: Content) -> None:
        """Nobody means or uses ``content``: cache it on the device, or free it."""
        if content.indexed:
            if content.block is not None:
                self.index.cache(content)
                self._free_host(content)
                return
            self.index.remove(content)
        self._free_device(content)
        self._free_host(content)

    def _free_device(self, content: Content) -> None:
        if content.block is not None:
            self.device.free(content.block)
            content.block = None

    def _free_host(self, content: Content) -> None:
        if content.host_block is not None:
            self.host.free(content.host_block)
            self._host_droppable.pop(content.host_block, None)
            content.host_block = None

    def lose(self, content: Content) -> None:
        """What ``content`` has on any tier is not what it should be: give it up."""
        if content.indexed:
            self.index.remove(content)
        self._free_device(content)
        self._free_host(content)

    def make_room(self, num_blocks: int, reclaim: Reclaim) -> bool:
        """Evict cached blocks, then let ``reclaim`` help, until ``num_blocks`` are free."""
        while self.device.num_free < num_blocks:
            evicted = self.index.pop_least_recent()
            if evicted is not None:
                self._free_device(evicted)
            elif not reclaim(num_blocks - self.device.num_free):
                return False
        return True

    def bind(self, content: Content) -> None:
        """Give ``content`` a device block; ``make_room`` has been called."""
        block = self.device.take()
        assert block is not None, "bind without room"
        content.block = BlockId(block)

    def swap_in(self, content: Content) -> None:
        """Bring ``content`` back to the device; ``make_room`` has been called."""
        host_block = content.host_block
        assert host_block is not None
        self.bind(content)
        assert content.block is not None
        self._operations.swap_in(host_block, content.block)
        self._free_host(content)
        self._num_swapped_in += 1

    def can_move_out(self, content: Content) -> bool:
        return content.block is not None and not content.num_pins

    def move_out(self, content: Content) -> bool:
        """Free the device block of a content that somebody means; False if no tier takes it.

        To the host if it has room; a canonical one may be dropped, because its tokens are known.
        """
        assert content.block is not None
        assert content.num_pins == 0
        host_block = self._take_host_block()
        if host_block is not None:
            self._operations.swap_out(content.block, host_block)
            content.host_block = host_block
            if content.canonical and content.tokens:
                self._host_droppable[host_block] = content
            self._num_swapped_out += 1
        elif content.canonical and content.tokens:
            self._num_dropped += 1
        else:
            return False
        self._free_device(content)
        if content.is_lost and content.indexed:
            self.index.remove(content)
        return True

    def _take_host_block(self) -> HostBlockId | None:
        host_block = self.host.take()
        victim = None if host_block is not None else self._least_recent_droppable()
        if victim is not None:
            self._free_host(victim)
            self._num_dropped += 1
            if victim.indexed:
                self.index.remove(victim)
            host_block = self.host.take()
        return None if host_block is None else HostBlockId(host_block)

    def _least_recent_droppable(self) -> Content | None:
        """What has been on the host for longest, can be computed again, and is not on its way
        back."""
        return next((c for c in self._host_droppable.values() if not c.num_pins), None)

    def add_to_index(self, contents: Iterable[Content]) -> None:
        for content in contents:
            if not content.indexed and content.node is not None and not content.is_lost:
                self.index.insert(content)

    def lose_everything(self, contents: Iterable[Content]) -> None:
        """The engine is gone, its memory with it. ``contents``: all that pages or exports mean."""
        for content in self.index.clear():
            self._free_device(content)
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
            num_swapped_out=self._num_swapped_out,
            num_swapped_in=self._num_swapped_in,
            num_dropped=self._num_dropped,
        )

    def check_invariants(self, held: Iterable[Content]) -> None:
        """``held``: every content that a page or an export means, once each."""
        self.device.check_invariants()
        self.host.check_invariants()
        self.index.check_invariants()
        contents = {id(content): content for content in [*held, *self.index.contents()]}
        blocks = [c.block for c in contents.values() if c.block is not None]
        hosts = [c.host_block for c in contents.values() if c.host_block is not None]
        assert len(set(blocks)) == len(blocks), "two contents share a block"
        assert len(set(hosts)) == len(hosts), "two contents share a host block"
        assert all(self.device.is_taken(block) for block in blocks), "a held block is free"
        assert all(self.host.is_taken(block) for block in hosts), "a held host block is free"


__all__ = ["Memory", "PoolStatistics", "Reclaim"]
