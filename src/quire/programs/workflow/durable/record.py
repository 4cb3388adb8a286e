"""``KeptRecord``: the record of a query that continues where it was cut off.

Decides which primitives do not run again: those with stored outputs. Some outputs are never
stored, because they live in the node (the pages of a prompt, the rows of the query's collection)
or cost nothing; such a primitive runs again only if another one needs it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from quire.programs.workflow.durable.entries import (
    EffectBegun,
    EffectFailed,
    GraphGrew,
    PrimitiveEnded,
)
from quire.programs.workflow.durable.growth_bytes import growth_bytes, growth_of
from quire.programs.workflow.durable.journal import Journal
from quire.programs.workflow.durable.stored_values import stored
from quire.programs.workflow.graphs.growing_graph import GrowingGraph
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import PREFILLS, Op, Primitive
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.template.growth import Growth

PASSING = PREFILLS | {Op.INGESTION, Op.AGGREGATE, Op.CONDITION}
"""Operations without stored outputs: they run again if another primitive needs them."""


class KeptRecord:
    """``Record`` in a ``Journal``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._graph: GrowingGraph
        self._runs: dict[str, bool] = {}
        """Whether each primitive of the graph runs."""
        self._read, self._written = Counter[str](), Counter[str]()
        """The effects that primitives that run, except ingestions, read and write."""

    def follow(
        self, graph: GrowingGraph, new: Sequence[str], instead_of: Primitive | None = None
    ) -> None:
        self._graph = graph
        if instead_of is not None:
            self._read.subtract(instead_of.reads)
            self._written.subtract(instead_of.writes)
        results = {ref.primitive for ref in graph.results.values()}
        for one in reversed(new):
            primitive = graph.primitives[one]
            if self._journal.has_ended(one):
                runs = self._has_wanted_state(primitive)
            elif primitive.op in PASSING:
                runs = one in results or self._is_needed(primitive)
            else:
                runs = True
            self._runs[one] = runs
            if runs and primitive.op is not Op.INGESTION:
                self._read.update(primitive.reads)
                self._written.update(primitive.writes)

    def known(self, primitive: Primitive, state: GraphState) -> Mapping[str, Any] | None:
        if not self._journal.has_ended(primitive.id):
            return None if self._runs[primitive.id] else {}
        if not self._is_used(primitive):
            return {}
        outputs = self._journal.outputs(primitive.id)
        assert outputs is not None, "it has ended"
        if self._runs[primitive.id]:
            call = state.inputs_of(primitive)["state"]
            call.recall(outputs["out"][0])
            outputs["state"] = call
        return outputs

    def carries_out(self, primitive: Primitive) -> bool:
        return not self._journal.has_ended(primitive.id) and self._runs[primitive.id]

    def growth(self, primitive: Primitive) -> Growth | None:
        content = self._journal.growth(primitive.id)
        return None if content is None else growth_of(content)

    async def begins(self, primitive: Primitive) -> None:
        if _acts(primitive):
            await self._journal.add(EffectBegun(primitive.id, primitive.node))

    async def failed(self, primitive: Primitive) -> None:
        if _acts(primitive):
            await self._journal.add(EffectFailed(primitive.id))

    async def ended(self, primitive: Primitive, outputs: Mapping[str, Any]) -> None:
        if primitive.op not in PASSING:
            content = await asyncio.to_thread(stored, primitive.node, primitive.outputs, outputs)
            await self._journal.add(PrimitiveEnded(primitive.id, content))

    async def grew(self, primitive: Primitive, growth: Growth, num_primitives: int) -> None:
        content = growth_bytes(primitive.node, growth)
        await self._journal.add(GraphGrew(primitive.id, content, num_primitives))

    def _has_wanted_state(self, primitive: Primitive) -> bool:
        """Whether a model must continue the answer that this stored element belongs to."""
        if ValueType.STATE not in primitive.outputs.values():
            return False
        children = (self._graph.primitives[child] for child in self._graph.users[primitive.id])
        return any(
            self._runs[child.id]
            for child in children
            for ref in child.inputs.values()
            if ref.primitive == primitive.id and ref.port == "state"
        )

    def _is_needed(self, primitive: Primitive) -> bool:
        """Whether a primitive that runs waits for it, or reads the rows that it stores."""
        if any(self._runs[child] for child in self._graph.children[primitive.id]):
            return True
        return primitive.op is Op.INGESTION and (
            any(self._written[one] > 0 for one in primitive.reads | primitive.writes)
            or any(self._read[one] > 0 for one in primitive.writes)
        )

    def _is_used(self, primitive: Primitive) -> bool:
        results = {ref.primitive for ref in self._graph.results.values()}
        users = self._graph.users[primitive.id]
        return primitive.id in results or any(self._runs[user] for user in users)


def _acts(primitive: Primitive) -> bool:
    """Whether a second call may have another effect than a single one."""
    return primitive.op is Op.TOOL and not primitive.config.get("pure")
