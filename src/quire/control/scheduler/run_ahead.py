"""Chooses what goes on behind a message whose result is not known yet: decode steps, next commands.

Owns which decodes may go on before their tokens are known, and for how many steps.
``engine_scheduler`` decides when the message behind is sent.
"""

from __future__ import annotations

from quire.control.commands.flow import Flow
from quire.control.engines.builder import BatchBuilder
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.in_flight import InFlight
from quire.control.engines.state import EngineState
from quire.control.memory.promises import NO_RECLAIM
from quire.control.programs.program import Entry
from quire.control.scheduler.lowering.decode_lowering import DecodeLowering


class RunAhead:
    def __init__(self, engine: EngineState, decodes: DecodeLowering, flow: Flow) -> None:
        self._engine = engine
        self._decodes = decodes
        self._flow = flow

    def num_steps_of(self, run: DecodeRun, num_steps: int) -> int:
        """How many of ``num_steps`` more steps ``run`` can take behind those in flight, as its
        budget and free blocks allow."""
        outstanding = run.num_outstanding
        num_steps = min(num_steps, run.max_tokens - run.num_generated - outstanding)
        while num_steps > 0:
            # one slot more, because a sequence whose cursor reaches its limit ends
            if self._decodes.bind_ahead(run, outstanding + num_steps + 1, NO_RECLAIM):
                return num_steps
            num_steps //= 2
        return 0

    def advance_behind(self, message: InFlight, builder: BatchBuilder, num_steps: int) -> list[int]:
        """Add the decodes of ``message`` that may go on before its result is known; return the
        steps of each."""
        max_steps = []
        for run in message.runs:
            if builder.budget <= 0 or not self._may_go_on(run):
                continue
            steps = self.num_steps_of(run, num_steps)
            if steps:
                builder.advance(run)
                max_steps.append(steps)
        return max_steps

    def next_behind(self, message: InFlight) -> list[Entry]:
        """The next command of each queue that ``message`` serves. None of them is returned if one
        has not been issued yet or cannot be sent ahead: its program would fall out of step with the
        others."""
        entries = []
        for queue in dict.fromkeys([part.entry.queue for part in message.parts]):
            entry = self._flow.next_for_engine(queue)
            if entry is None or any(isinstance(e.run, DecodeRun) for e in queue.entries):
                return []
            entries.append(entry)
        return entries

    def _may_go_on(self, run: DecodeRun) -> bool:
        entry = run.entry
        return entry.is_wanted and run.is_open and entry in self._engine.running
