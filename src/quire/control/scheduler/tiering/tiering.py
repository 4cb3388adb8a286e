"""Cached pages between the device and the host: what a message begins to move for the index.

Owns no rule: ``demotion`` chooses what leaves the device.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.scheduler.pausing.gate import ProgramGate
from quire.control.scheduler.tiering.demotion import Demotion
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.timing.move_time import MoveTime


class Tiering:
    """Of one engine."""

    def __init__(self, engine: EngineState, gate: ProgramGate, chunk_time: ChunkTime) -> None:
        self._move_time = MoveTime()
        self._demotion = Demotion(engine, gate, chunk_time, self._move_time)

    def observe(self, elapsed_s: float, num_blocks: int) -> None:
        """Transfers of ``num_blocks`` have ended; copying took ``elapsed_s``."""
        self._move_time.observe(elapsed_s, num_blocks)

    def move_out(self) -> None:
        """A message is about to be sent: what leaves the device leaves with it."""
        self._demotion.run()
