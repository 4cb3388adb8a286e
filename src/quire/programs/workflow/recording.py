"""``QueryRecord``: what the graph scheduler asks before a primitive, and tells behind it.

``NO_RECORD`` is that of a query of which nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from quire.core.errors import ProgramError
from quire.programs.workflow.graph import PrimitiveGraph
from quire.programs.workflow.growth import Growth
from quire.programs.workflow.object_store import GraphState
from quire.programs.workflow.primitives import Primitive


class OutcomeUnknown(ProgramError):
    """A tool did not answer, and nobody knows what it has done."""


class QueryRecord(Protocol):
    """Of one query. What it is told is kept when a call returns."""

    def follow(self, graph: PrimitiveGraph) -> None:
        """The query's graph is ``graph`` now."""
        ...

    def known(self, primitive: Primitive, state: GraphState) -> Mapping[str, Any] | None:
        """The outputs of a primitive that need not be carried out; nothing if nobody uses them."""
        ...

    def carries_out(self, primitive: Primitive) -> bool:
        """Whether ``primitive`` runs in this life of the query, because nothing is kept of it."""
        ...

    def growth(self, primitive: Primitive) -> Growth | None:
        """What the function of a growth has returned before."""
        ...

    async def begins(self, primitive: Primitive) -> None: ...

    async def failed(self, primitive: Primitive) -> None:
        """It has said so itself."""
        ...

    async def ended(self, primitive: Primitive, outputs: Mapping[str, Any]) -> None:
        """Raises ``InvalidArgument`` if the outputs cannot be kept."""
        ...

    async def grew(self, primitive: Primitive, growth: Growth, num_primitives: int) -> None:
        """Raises ``InvalidArgument`` if its values cannot be kept."""
        ...


class _NoRecord:
    def follow(self, graph: PrimitiveGraph) -> None:
        """Nothing is kept."""

    def known(self, primitive: Primitive, state: GraphState) -> Mapping[str, Any] | None:
        return None

    def carries_out(self, primitive: Primitive) -> bool:
        return True

    def growth(self, primitive: Primitive) -> Growth | None:
        return None

    async def begins(self, primitive: Primitive) -> None:
        """Nothing is kept."""

    async def failed(self, primitive: Primitive) -> None:
        """Nothing is kept."""

    async def ended(self, primitive: Primitive, outputs: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    async def grew(self, primitive: Primitive, growth: Growth, num_primitives: int) -> None:
        """Nothing is kept."""


NO_RECORD: QueryRecord = _NoRecord()
