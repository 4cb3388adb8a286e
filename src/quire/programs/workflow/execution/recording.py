"""``QueryRecord``: what the graph scheduler asks before a primitive runs and reports after it.

``NO_RECORD`` is the record of a query that is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from quire.core.errors import ProgramError
from quire.programs.workflow.graphs.growing_graph import GrowingGraph
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.template.growth import Growth


class OutcomeUnknown(ProgramError):
    """A tool did not answer, so it is not known what it has done."""


class QueryRecord(Protocol):
    """The record of one query. What a call reports is kept when the call returns."""

    def follow(
        self, graph: GrowingGraph, new: Sequence[str], instead_of: Primitive | None = None
    ) -> None:
        """Note the primitives ``new`` of the query's graph, parents before children.
        ``instead_of``: the growth that they replace; None at the beginning, for all."""
        ...

    def known(self, primitive: Primitive, state: GraphState) -> Mapping[str, Any] | None:
        """Return the outputs of a primitive that need not run, or None if it must. The outputs are
        empty if no other primitive uses them."""
        ...

    def carries_out(self, primitive: Primitive) -> bool:
        """Whether ``primitive`` runs in this attempt, because nothing of it is kept."""
        ...

    def growth(self, primitive: Primitive) -> Growth | None:
        """Return what the function of a growth returned in an earlier attempt, or None."""
        ...

    async def begins(self, primitive: Primitive) -> None: ...

    async def failed(self, primitive: Primitive) -> None:
        """Note that ``primitive`` reported an error itself, so that its outcome is known."""
        ...

    async def ended(self, primitive: Primitive, outputs: Mapping[str, Any]) -> None:
        """Keep the outputs; raise ``InvalidArgument`` if they cannot be kept."""
        ...

    async def grew(self, primitive: Primitive, growth: Growth, num_primitives: int) -> None:
        """Keep the growth; raise ``InvalidArgument`` if its values cannot be kept."""
        ...


class _NoRecord:
    def follow(
        self, graph: GrowingGraph, new: Sequence[str], instead_of: Primitive | None = None
    ) -> None:
        """Do nothing: nothing is kept."""

    def known(self, primitive: Primitive, state: GraphState) -> Mapping[str, Any] | None:
        return None

    def carries_out(self, primitive: Primitive) -> bool:
        return True

    def growth(self, primitive: Primitive) -> Growth | None:
        return None

    async def begins(self, primitive: Primitive) -> None:
        """Do nothing: nothing is kept."""

    async def failed(self, primitive: Primitive) -> None:
        """Do nothing: nothing is kept."""

    async def ended(self, primitive: Primitive, outputs: Mapping[str, Any]) -> None:
        """Do nothing: nothing is kept."""

    async def grew(self, primitive: Primitive, growth: Growth, num_primitives: int) -> None:
        """Do nothing: nothing is kept."""


NO_RECORD: QueryRecord = _NoRecord()
