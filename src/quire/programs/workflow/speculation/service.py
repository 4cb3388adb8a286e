"""The figures and experience of speculation on a node, which its queries report."""

from __future__ import annotations

import asyncio
import threading

from quire.core.errors import InvalidArgument
from quire.programs.services.operations import ProgramService, operation
from quire.programs.workflow.speculation.figures import SpeculationFigures
from quire.programs.workflow.speculation.kept import KeptExperience


class SpeculationLedger:
    """The figures of all queries together, and what they have learnt. For any thread."""

    def __init__(self, kept: KeptExperience | None = None) -> None:
        self.kept = kept or KeptExperience()
        self._sum = SpeculationFigures()
        self._lock = threading.Lock()

    def add(self, figures: SpeculationFigures) -> None:
        with self._lock:
            self._sum += figures

    def statistics(self) -> SpeculationFigures:
        with self._lock:
            return self._sum


class SpeculationService(ProgramService):
    """Only native programs have it, because they are trusted to report what they have done."""

    def __init__(self, ledger: SpeculationLedger) -> None:
        self._ledger = ledger

    @operation("speculation.recall")
    async def recall(self, application: str, template: str) -> dict[str, tuple[float, int]]:
        """Return what earlier queries have learnt. ``template``: the template's digest."""
        return dict(self._ledger.kept.recall(application, template))

    @operation("speculation.learn")
    async def learn(
        self, application: str, template: str, seen: dict[str, tuple[float, int]]
    ) -> None:
        await asyncio.to_thread(self._ledger.kept.keep, application, template, seen)

    @operation("speculation.note")
    async def note(
        self, num_begun: int, num_kept: int, num_dropped: int, num_dropped_tokens: int
    ) -> None:
        numbers = (num_begun, num_kept, num_dropped, num_dropped_tokens)
        if min(numbers) < 0:
            raise InvalidArgument(f"speculation.note is told {numbers}: give numbers from 0 up")
        self._ledger.add(SpeculationFigures(*numbers))
