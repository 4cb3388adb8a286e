"""Cached pages go to the host in place of being evicted, where that is expected to cost less.

Owns the choice. ``memory`` moves; ``gate`` says how likely a page is needed again.

**When.** A block that is moved out is free only at the end of its transfer. So that nobody waits
for that, blocks are made free ahead: as many as the prompts of one message can take. What is needed
beyond that is evicted at once, as without a host tier: nothing here ever delays a call.

**Which.** Of what is evicted next, the pages for which

    chance of return * time to compute it  >  time to move it out + chance * time to move it in

The chance is learned from the waits of the program's class; the times are those that the engine
has measured. Until it has measured a move, a move is taken to cost nothing. Where the host is full,
a page takes the place of one that is less likely to be needed, and of no other: if pages of equally
likely programs pushed each other out in turn, none would find its own.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.timing.move_time import MoveTime


class Demotion:
    """Of one engine."""

    def __init__(
        self, engine: EngineState, gate: ProgramGate, chunk_time: ChunkTime, move_time: MoveTime
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._chunk_time = chunk_time
        self._move_time = move_time

    @property
    def num_reserved(self) -> int:
        """Blocks that are made free ahead."""
        pool, size = self._engine.info.pool, self._engine.memory.device.size
        return min(size // 8, -(-pool.max_batch_tokens // pool.page_size))

    def run(self) -> list[Content]:
        """Begin to move out what stands before the reserve; returns it."""
        memory = self._engine.memory
        if not memory.host.size or not memory.index.num_cached:
            return []
        num_short = self.num_reserved - memory.device.num_free - memory.transfers.num_leaving
        if num_short <= 0:
            return []
        return [one for one in memory.index.least_recent(num_short) if self._demote(one)]

    def _demote(self, content: Content) -> bool:
        memory, chance = self._engine.memory, self._gate.chance_of(content)
        if not self.is_worth_it(chance):
            return False
        if not memory.host.num_free:
            victim = memory.host_tier.first_cached()
            if victim is None or self._gate.chance_of(victim) >= chance:
                return False
        return memory.demote(content)

    def is_worth_it(self, chance: float) -> bool:
        """Whether a page that is needed again with this chance should rather be moved than computed
        again."""
        token_s, block_s = self._chunk_time.token_s, self._move_time.block_s
        if token_s is None or block_s is None:
            return chance > 0
        return chance * token_s * self._engine.page_size > (1 + chance) * block_s
