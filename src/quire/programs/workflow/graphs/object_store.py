"""``GraphState``: the progress of one query's graph, and the values that are still needed.

Does no I/O and starts nothing: its caller reports ended primitives and learns which may start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.growing_graph import Graft, GrowingGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import Ref, empty

_ENDED = -1
"""Marks an ended primitive, in place of the number of primitives that it waits for."""


class GraphState:
    """Call ``start`` once, then for every ended primitive ``finish``, or ``grow`` if others replace
    it. A value is dropped when its last user has ended."""

    def __init__(self, graph: PrimitiveGraph, query: Mapping[str, Any]) -> None:
        self.graph = GrowingGraph(graph)
        self._query = query
        self._waiting = {one.id: len(one.parents) for one in graph.primitives.values()}
        self._values: dict[str, Mapping[str, Any]] = {}
        self._num_users: dict[str, int] = {}
        """The number of unended users of each primitive's values, and of results among them."""
        self._count_users(graph.primitives)
        self.num_left = len(graph.primitives)
        """The number of primitives that have not ended."""

    @property
    def num_values(self) -> int:
        """The number of primitives whose values are kept."""
        return len(self._values)

    def start(self) -> list[Primitive]:
        """Return the primitives that wait for nothing."""
        return self._deepest_first([one for one, num in self._waiting.items() if not num])

    def finish(self, one: str, outputs: Mapping[str, Any]) -> list[Primitive]:
        """Keep the outputs of a primitive, and return the primitives that may start now, those
        farthest from a result first."""
        assert self._waiting[one] == 0, f"{one} has ended without having been started"
        self._waiting[one] = _ENDED
        self.num_left -= 1
        if self._num_users[one]:
            self._values[one] = outputs
        self._drop_unused(self.graph.primitives[one].sources)
        ready: list[str] = []
        for child in self.graph.children[one]:
            self._waiting[child] -= 1
            if not self._waiting[child]:
                ready.append(child)
        return self._deepest_first(ready)

    def grow(
        self,
        one: str,
        part: PrimitiveGraph,
        passed: Mapping[str, Ref],
        values: Mapping[str, Any],
        seconds: Callable[[Primitive], float] = lambda primitive: 0.0,
    ) -> tuple[Graft, list[Primitive]]:
        """End a growth, which ``part`` replaces: see ``GrowingGraph.graft``. ``values``: the query
        inputs of ``part``. Return also the primitives that may start now."""
        assert self._waiting[one] == 0, f"{one} has ended without having been started"
        self._waiting[one] = _ENDED
        sources = self.graph.primitives[one].sources
        graft = self.graph.graft(one, part, passed, seconds)
        self.num_left += len(graft.new) - 1
        self._waiting |= dict.fromkeys(graft.new, 0)
        ready: list[str] = []
        for child in (*graft.behind, *(f"{graft.scope}/{name}" for name in part.primitives)):
            parents = self.graph.primitives[child].parents
            num = sum(self._waiting[parent] != _ENDED for parent in parents)
            self._waiting[child] = num
            if not num:
                ready.append(child)
        self._count_users([one, *graft.new])
        if self._num_users[one]:
            self._values[one] = values
        self._drop_unused(sources)
        return graft, self._deepest_first(ready)

    def _count_users(self, ids: Iterable[str]) -> None:
        """Count the unended users of the values of ``ids``, and the results among them."""
        found = {
            one: sum(self._waiting[user] != _ENDED for user in self.graph.users[one]) for one in ids
        }
        for ref in self.graph.results.values():
            if ref.primitive in found:
                found[ref.primitive] += 1
        self._num_users |= found

    def _drop_unused(self, sources: Iterable[str]) -> None:
        """Note that a user of the values of ``sources`` has ended."""
        for source in sources:
            self._num_users[source] -= 1
            if not self._num_users[source]:
                del self._values[source]

    def inputs_of(self, primitive: Primitive) -> dict[str, Any]:
        """Return the values that a primitive works on, by name."""
        return {name: self.value(ref) for name, ref in primitive.inputs.items()}

    def skipped(self, primitive: Primitive) -> dict[str, Any] | None:
        """Return the empty outputs of a primitive on a branch that is not taken, or None if it must
        run."""
        if primitive.when is None or self.value(primitive.when):
            return None
        return {port: empty(kind) for port, kind in primitive.outputs.items()}

    def results(self) -> dict[str, Any]:
        """Return the outputs of the query, once every primitive has ended."""
        assert not self.num_left, f"{self.num_left} primitives have not ended"
        return {name: self.value(ref) for name, ref in self.graph.results.items()}

    def has_ended(self, one: str) -> bool:
        return self._waiting[one] == _ENDED

    def has_value(self, ref: Ref) -> bool:
        """Whether the value is kept. A primitive that need not run may give none."""
        return ref.from_query or ref.port in self._values.get(ref.primitive, ())

    def value(self, ref: Ref) -> Any:
        """Return the value of an input of the query, or of an ended primitive with unended
        users."""
        whole = self._query if ref.from_query else self._values[ref.primitive]
        return ref.take(whole[ref.port])

    def _deepest_first(self, ids: list[str]) -> list[Primitive]:
        found = [self.graph.primitives[one] for one in ids]
        return sorted(found, key=lambda primitive: -primitive.depth)
