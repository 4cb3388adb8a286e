"""Pages between the tiers: what a message begins to move, besides what its commands need.

Owns no rule: ``demotion`` chooses what leaves the device, ``spilling`` what leaves the host,
``prefetch`` what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.transfers import Transfer
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.tiering.demotion import Demotion
from quire.control.scheduler.tiering.prefetch import Prefetch
from quire.control.scheduler.tiering.price import MovePrice
from quire.control.scheduler.tiering.spilling import Spilling
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.timing.move_time import MoveTimes


class Tiering:
    """The tiering of one engine."""

    def __init__(
        self, engine: EngineState, gate: ProgramGate, chunk_time: ChunkTime, time: EventTime
    ) -> None:
        self.times = MoveTimes()
        host, write, read = self.times.host, self.times.write, self.times.read
        host_price = MovePrice(chunk_time, engine.page_size, host, host)
        disk_price = MovePrice(chunk_time, engine.page_size, write, read)
        self._demotion = Demotion(engine, gate, host_price, disk_price)
        self._spilling = Spilling(engine, gate, disk_price, self.times, time)
        self._prefetch = Prefetch(engine, gate, self.times, time)

    @property
    def num_prefetched(self) -> int:
        return self._prefetch.num_fetched

    def observe(self, elapsed_s: float, ended: Sequence[Transfer]) -> None:
        """Note that transfers of one direction have ended; copying took ``elapsed_s``."""
        self.times.observe(elapsed_s, ended)
        self._spilling.observe(ended)

    def run(self) -> None:
        """Choose what begins to move with the message that may be sent now."""
        for content in self._spilling.run():
            self._prefetch.left(content)
        self._prefetch.run(self._demotion.num_reserved)
        for content in self._demotion.run():
            self._prefetch.left(content)

    def next_look_s(self) -> float | None:
        """The time at which something may move without an event; None if there is none."""
        return self._prefetch.next_look_s()
