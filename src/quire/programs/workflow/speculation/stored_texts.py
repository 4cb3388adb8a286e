"""``StoredTexts``: the texts that a running query stores before one of its searches.

Owns the ingestions whose texts are kept or may still come. What it costs does not grow with the
primitives that have ended. Must not know why the texts are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Op, Primitive


class StoredTexts:
    """The texts of one query. Call ``grew`` when its graph has grown."""

    def __init__(self, state: GraphState) -> None:
        self._state = state
        self._ingestions: list[str] = []
        self._lost = frozenset[str]()
        """The stores with rows whose texts are not kept any more."""
        self._before: dict[str, list[str] | None] = {}
        """Found already, by ranking."""
        self.grew(state.graph.primitives)

    def grew(self, new: Iterable[str]) -> None:
        """Note the primitives ``new`` of the query's graph."""
        primitives = self._state.graph.primitives
        self._ingestions += [one for one in new if primitives[one].op is Op.INGESTION]
        self._before.clear()

    def before(self, ranking: Primitive) -> list[str] | None:
        """Return the texts, each once, that are stored for the searches of ``ranking``, which has
        not begun; None if one is not known."""
        if ranking.id not in self._before:
            self._before[ranking.id] = self._ingestions_before(ranking)
        found: dict[str, None] = {}
        for one in self._before[ranking.id] or ():
            ref = self._state.graph.primitives[one].inputs["texts"]
            if not self._state.has_value(ref):
                return None
            found |= dict.fromkeys(self._state.value(ref))
        return list(found) or None

    def _ingestions_before(self, ranking: Primitive) -> list[str] | None:
        """Return the ingestions that store the texts, or None if there were some whose texts are
        lost. One that has ended came before ``ranking``'s searches: what stores and what searches
        have an order."""
        self._forget()
        primitives = self._state.graph.primitives
        searched = stores_of(primitives, ranking)
        if searched & self._lost:
            return None
        unended, waiting = set[str](), [ranking.id]
        while waiting:
            parents = primitives[waiting.pop()].parents - unended
            new = [one for one in parents if not self._state.has_ended(one)]
            unended.update(new)
            waiting += new
        return [
            one
            for one in self._ingestions
            if primitives[one].writes & searched and (one in unended or self._state.has_ended(one))
        ]

    def _forget(self) -> None:
        """Drop the ingestions that have ended and whose texts are not kept."""
        primitives, kept = self._state.graph.primitives, list[str]()
        for one in self._ingestions:
            primitive = primitives[one]
            if self._state.has_ended(one) and not self._state.has_value(primitive.inputs["texts"]):
                self._lost |= primitive.writes
            else:
                kept.append(one)
        self._ingestions = kept


def stored_before(graph: PrimitiveGraph, ranking: Primitive) -> list[Primitive]:
    """Return the ingestions that store the texts for the searches of ``ranking``."""
    searched, ancestors = stores_of(graph.primitives, ranking), graph.ancestors[ranking.id]
    stores = (one for one in graph.primitives.values() if one.op is Op.INGESTION)
    return [one for one in stores if one.id in ancestors and one.writes & searched]


def stores_of(primitives: Mapping[str, Primitive], ranking: Primitive) -> frozenset[str]:
    """Return the stores in which the texts of ``ranking`` are searched."""
    searched, waiting = frozenset[str](), [ranking.inputs["texts"].primitive]
    while waiting:
        source = primitives.get(waiting.pop())
        if source is not None and source.op is Op.AGGREGATE:
            waiting += source.sources
        elif source is not None and source.op is Op.SEARCHING:
            searched |= source.reads
    return searched
