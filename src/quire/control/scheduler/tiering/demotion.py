"""Cached pages go to a lower tier in place of being evicted, where that is expected to cost less.

Owns the choice. ``memory`` moves; ``gate`` estimates how likely a page is needed again, ``price``
whether moving it is worth it.

**When.** A block that is moved out is free only at the end of its transfer. So that no command
waits for that, blocks are made free ahead: as many as the prompts of two messages can take, the one
that runs and the one behind it, and at most an eighth of the device. Contents beyond that are
evicted at once, as without a lower tier: nothing here ever delays a call.

**Which.** Those of the prompts that are evicted next, from their beginnings on: if the rest has to
be evicted at once, the beginning can be found, while an end without its beginning could not.

**Where.** Contents go to the host; those without a place there go to the disk. In a full tier, a
page replaces one that is less likely to be needed, and no other: if pages of equally likely
programs pushed each other out in turn, none would find its own.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.transfers import Tier
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.tiering.price import MovePrice

_NUM_MESSAGES = 2
"""One message is computed, and one waits behind it: neither waits for a transfer."""


class Demotion:
    """Demotes cached pages of one engine."""

    def __init__(
        self, engine: EngineState, gate: ProgramGate, host_price: MovePrice, disk_price: MovePrice
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._host_price = host_price
        self._disk_price = disk_price

    @property
    def num_reserved(self) -> int:
        """The number of blocks that are made free ahead."""
        pool, size = self._engine.info.pool, self._engine.memory.device.size
        return min(size // 8, _NUM_MESSAGES * -(-pool.max_batch_tokens // pool.page_size))

    def run(self) -> list[Content]:
        """Begin to move out the contents that are evicted next, until the reserve is free; return
        them."""
        memory = self._engine.memory
        if not (memory.host.size or memory.disk_tier.pool.size) or not memory.index.num_cached:
            return []
        num_short = self.num_reserved - memory.device.num_free - memory.transfers.num_leaving
        if num_short <= 0:
            return []
        return [one for one in memory.index.beginnings(num_short) if self._demote(one)]

    def _demote(self, content: Content) -> bool:
        memory, gate, chance = self._engine.memory, self._gate, self._gate.chance_of(content)
        if self._host_price.is_worth_it(chance) and gate.has_place_on(memory.host_tier, chance):
            return memory.descent.demote(content)
        disk = memory.disk_tier
        if not disk.is_open or not self._disk_price.is_worth_it(chance):
            return False
        return gate.has_place_on(disk, chance) and memory.descent.demote(content, Tier.DISK)
