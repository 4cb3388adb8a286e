"""Moves contents from the host to the disk, and decides whether the disk is in use at all.

Owns both. A host block is free only at the end of its transfer, so blocks of the host are made free
ahead, as on the device: those of the contents that make way next. What can be computed again goes
to the disk if that is worth its price, the rest in any case.

**Faults.** A disk that fails is not written for a while, and for twice as long if it fails again
then. What it holds is read in any case: each block has a checksum.

**Times.** If a slow hour has made the disk too dear, nothing is written and so nothing is measured:
after a while the measured time is forgotten, and one reserve of blocks measures it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.content import Content
from quire.control.memory.transfers import Tier, Transfer
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.tiering.price import MovePrice
from quire.control.scheduler.timing.move_time import MoveTimes

FIRST_PAUSE_S = 10.0
LAST_PAUSE_S = 640.0
MEASURED_FOR_S = 60.0
"""How long a measured time that keeps everything from the disk is used."""


class Spilling:
    """Spills contents of one engine."""

    def __init__(
        self,
        engine: EngineState,
        gate: ProgramGate,
        price: MovePrice,
        times: MoveTimes,
        time: EventTime,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._price = price
        self._times = times
        self._time = time
        self._pause_s = FIRST_PAUSE_S
        self._closed_until_s = 0.0
        self._written_s = 0.0

    def observe(self, ended: Sequence[Transfer]) -> None:
        """Read the outcome of ended transfers: a failure closes the disk for a while."""
        disk, now_s = self._engine.memory.disk_tier, self._time.now_s
        of_disk = [transfer for transfer in ended if transfer.uses_disk]
        if any(transfer.has_failed for transfer in of_disk):
            if disk.is_open:
                disk.is_open = False
                self._closed_until_s = now_s + self._pause_s
                self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        elif any(transfer.target.tier is Tier.DISK for transfer in of_disk):
            self._written_s = now_s
            if disk.is_open:
                self._pause_s = FIRST_PAUSE_S

    @property
    def _num_reserved(self) -> int:
        """The number of host blocks that are made free ahead: as many as the prompts of one message
        may push out, and no more than an eighth of all."""
        pool = self._engine.info.pool
        num_pushed = -(-pool.max_batch_tokens // pool.page_size)
        return min(num_pushed, -(-self._engine.memory.host.size // 8))

    def run(self) -> list[Content]:
        """Begin to move the host's contents that make way next, until the reserve is free; return
        those of them without a holder."""
        memory = self._engine.memory
        if not memory.disk_tier.pool.size:
            return []
        self._look_at_disk(self._time.now_s)
        host, num_leaving = memory.host_tier, memory.transfers.num_leaving_host
        num_short = self._num_reserved - host.pool.num_free - num_leaving
        if not memory.disk_tier.is_open or num_short <= 0:
            return []
        spilled = [one for one in list(islice(host.in_order(), num_short)) if self._spill(one)]
        return [content for content in spilled if not content.num_refs]

    def _look_at_disk(self, now_s: float) -> None:
        disk = self._engine.memory.disk_tier
        if not disk.is_open and now_s >= self._closed_until_s:
            disk.is_open = True
        disk.is_worth_it = self._price.is_worth_it(1.0)
        if not disk.is_worth_it and now_s >= self._written_s + MEASURED_FOR_S:
            self._times.write.forget()
            self._times.read.forget()
            self._written_s = now_s

    def _spill(self, content: Content) -> bool:
        memory, is_known = self._engine.memory, content.canonical and content.tokens
        chance = 1.0 if content.num_refs else self._gate.chance_of(content)
        if is_known and not self._price.is_worth_it(chance):
            return False
        return self._gate.has_place_on(memory.disk_tier, chance) and memory.descent.spill(content)
