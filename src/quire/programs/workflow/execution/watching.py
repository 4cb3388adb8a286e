"""The events of a running query: its primitives, and the text of its answer.

Must not know who receives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quire.core.errors import QuireError
from quire.programs.api.encode import EncoderBatches
from quire.programs.workflow.execution.answer_text import SaidText
from quire.programs.workflow.graphs.growing_graph import GrowingGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.speculation.figures import SpeculationFigures


@dataclass(frozen=True, slots=True)
class PrimitiveStep:
    """One primitive that has ended; times in seconds of the clock that was given. ``shared``: it
    took the result of an equal one of the tenant, which was ``kept`` or ``in flight``. ``ahead``:
    it began before it was known to be needed. ``batches``: of an encoder's primitive, the batches
    in which its texts were computed."""

    primitive: Primitive
    started_s: float
    ended_s: float
    shared: str | None = None
    ahead: bool = False
    batches: EncoderBatches | None = None


class Watcher(Protocol):
    """Receives the events of a query, which awaits each call: a slow watcher slows the query down.

    ``reads_text``: whether it wants an answer's text while the model writes it.
    """

    @property
    def reads_text(self) -> bool: ...

    async def began(self, primitive: Primitive, started_s: float) -> None: ...

    async def ended(self, step: PrimitiveStep) -> None: ...

    async def said(self, output: str, said: SaidText) -> None:
        """Receive text of the result ``output``."""
        ...

    async def resumed(self, num_kept: int, num_primitives: int) -> None:
        """The query continues: ``num_kept`` of its primitives do not run again, of the
        ``num_primitives`` that it had when it was cut off."""
        ...

    async def repeats(self, primitive: Primitive, error: QuireError) -> None:
        """The primitive has lost its engine and runs again."""
        ...

    async def speculated(self, figures: SpeculationFigures) -> None:
        """The query has its results; ``figures`` are those of its runs ahead."""
        ...

    async def grew(self, primitive: Primitive, graph: GrowingGraph) -> None:
        """Other primitives have replaced a growth in the query's ``graph``, which may grow
        again."""
        ...


class StepLog:
    """A ``Watcher`` that keeps the steps in the order of their ends, and the primitives that ran
    again."""

    reads_text = False

    def __init__(self) -> None:
        self.steps: list[PrimitiveStep] = []
        self.repeated: list[Primitive] = []
        self.num_kept = self.num_before = 0
        """The numbers of primitives that do not run again, and of all before the interruption."""
        self.speculation = SpeculationFigures()
        self.graph: GrowingGraph | None = None
        """The grown graph; None if it has not grown."""

    async def began(self, primitive: Primitive, started_s: float) -> None:
        """Do nothing: its step has the time when it began."""

    async def ended(self, step: PrimitiveStep) -> None:
        self.steps.append(step)

    async def said(self, output: str, said: SaidText) -> None:
        """Do nothing: the result has the text."""

    async def resumed(self, num_kept: int, num_primitives: int) -> None:
        self.num_kept, self.num_before = num_kept, num_primitives

    async def repeats(self, primitive: Primitive, error: QuireError) -> None:
        self.repeated.append(primitive)

    async def speculated(self, figures: SpeculationFigures) -> None:
        self.speculation = figures

    async def grew(self, primitive: Primitive, graph: GrowingGraph) -> None:
        self.graph = graph
