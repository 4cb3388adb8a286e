"""Spare time: commands of spare queues run while their engine has nothing else to do.

Owns the decision, anew for each message: parked commands are let in if nothing else runs or waits,
and make way as soon as anything else does. So a message carries either spare commands or others,
and a command that arrives meanwhile waits for one message, which is kept short.
"""

from __future__ import annotations

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.programs.program import Entry
from quire.control.scheduler.waiting.backlog import Backlog
from quire.control.scheduler.waiting.seating import Seating

MESSAGE_S = 0.05
"""The longest time, roughly, of the prompts of a message of spare commands."""


class SpareTime:
    """The spare time of one engine."""

    def __init__(self, engine: EngineState, backlog: Backlog, seating: Seating) -> None:
        self._engine = engine
        self._backlog = backlog
        self._seating = seating

    @property
    def is_used(self) -> bool:
        """Whether spare commands have been let in."""
        return bool(self._backlog.spare)

    def review(self) -> None:
        """Let spare commands in or put them out, as a message is planned and none is in flight."""
        backlog = self._backlog
        if not backlog.spare and not backlog.parked:
            return
        if backlog.has_others() or any(e not in backlog.spare for e in self._engine.running):
            for entry in list(backlog.spare):
                self._put_out(entry)
        else:
            backlog.let_in()

    def _put_out(self, entry: Entry) -> None:
        run = entry.run
        if isinstance(run, DecodeRun) and run.is_open:
            self._seating.unseat(run)
        self._backlog.park(entry)
