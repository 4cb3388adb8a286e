"""Cached pages between the device and the host: what a message begins to move for the index.

Owns no rule: ``demotion`` chooses what leaves the device, ``prefetch`` what comes back.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.tiering.demotion import Demotion
from quire.control.scheduler.tiering.prefetch import Prefetch
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.timing.move_time import MoveTime


class Tiering:
    """Of one engine."""

    def __init__(
        self, engine: EngineState, gate: ProgramGate, chunk_time: ChunkTime, time: EventTime
    ) -> None:
        self._move_time = MoveTime()
        self._demotion = Demotion(engine, gate, chunk_time, self._move_time)
        self._prefetch = Prefetch(engine, gate, self._move_time, time)

    @property
    def num_prefetched(self) -> int:
        return self._prefetch.num_fetched

    def observe(self, elapsed_s: float, num_blocks: int) -> None:
        """Transfers of ``num_blocks`` have ended; copying took ``elapsed_s``."""
        self._move_time.observe(elapsed_s, num_blocks)

    def run(self) -> None:
        """A message may be sent: what moves begins with it."""
        self._prefetch.run(self._demotion.num_reserved)
        for content in self._demotion.run():
            self._prefetch.left(content)

    def next_look_s(self) -> float | None:
        """When time alone makes something move."""
        return self._prefetch.next_look_s()
