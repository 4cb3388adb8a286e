"""``PrimitiveGraph``: primitives and how they depend on one another; a p-graph or an e-graph.

Owns order and depth. A graph never changes: a pass makes a new one with ``Draft``. Must not know
the purpose of the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count
from types import MappingProxyType

from quire.core.errors import InvalidArgument
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import Ref, ValueType


@dataclass(frozen=True)
class PrimitiveGraph:
    """``primitives`` by id; ``results``: the outputs of the query by name; ``query_inputs``: the
    types of the query's inputs by name.

    Raises:
        InvalidArgument: the dependencies have a cycle, or one names a primitive that is not there.
    """

    primitives: Mapping[str, Primitive]
    results: Mapping[str, Ref]
    query_inputs: Mapping[str, ValueType]

    def __post_init__(self) -> None:
        assert self.order is not None
        for name, ref in self.results.items():
            if not ref.from_query and ref.primitive not in self.primitives:
                raise InvalidArgument(
                    f"the result {name!r} comes from {ref.primitive}, which is not in the graph: "
                    "keep it, or let the result refer to another primitive"
                )

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The ids, parents before children; of those that may come next, the one added first."""
        children = self.children  # refuses parents that are not there, which look like a cycle
        places = {one: place for place, one in enumerate(self.primitives)}
        waiting = {one.id: len(one.parents) for one in self.primitives.values()}
        ready = [places[one] for one, num in waiting.items() if not num]
        heapify(ready)
        names, order = list(places), list[str]()
        while ready:
            order.append(names[heappop(ready)])
            for child in children[order[-1]]:
                waiting[child] -= 1
                if not waiting[child]:
                    heappush(ready, places[child])
        if len(order) < len(places):
            stuck = ", ".join(sorted(set(places) - set(order))[:8])
            raise InvalidArgument(
                f"the primitives {stuck} wait for one another: remove an input or a '>>' that "
                "closes the cycle"
            )
        return tuple(order)

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """The ids of the primitives that wait for each primitive."""
        found: dict[str, list[str]] = {one: [] for one in self.primitives}
        for primitive in self.primitives.values():
            for parent in primitive.parents:
                if parent not in found:
                    raise InvalidArgument(
                        f"{primitive.id} waits for {parent}, which is not in the graph: keep it, "
                        "or redirect what needs it"
                    )
                found[parent].append(primitive.id)
        return MappingProxyType({one: tuple(ids) for one, ids in found.items()})

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """The ids of the primitives that use a value of each primitive."""
        found: dict[str, list[str]] = {one: [] for one in self.primitives}
        for primitive in self.primitives.values():
            for source in primitive.sources:
                found[source].append(primitive.id)
        return MappingProxyType({one: tuple(ids) for one, ids in found.items()})

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """All primitives that must have ended before each primitive starts."""
        found: dict[str, frozenset[str]] = {}
        for one in self.order:
            parents = self.primitives[one].parents
            found[one] = parents.union(*(found[parent] for parent in parents))
        return MappingProxyType(found)

    def with_depths(
        self, seconds: Callable[[Primitive], float] = lambda primitive: 0.0
    ) -> PrimitiveGraph:
        """Return the same graph with three fields of its primitives set.

        ``depth`` (Algorithm 2, event 1): 0 for a result. ``number``, by which control knows a
        primitive's requests: for primitives without one. ``remaining_us``: from ``seconds``, the
        time that a primitive takes alone.
        """
        depths: dict[str, int] = {}
        remaining_s: dict[str, float] = {}
        for one in reversed(self.order):
            children = self.children[one]
            depths[one] = max((depths[child] + 1 for child in children), default=0)
            below_s = max((remaining_s[child] for child in children), default=0.0)
            remaining_s[one] = seconds(self.primitives[one]) + below_s
        numbers = {one: self.primitives[one].number for one in self.order}
        unused = count(max(numbers.values(), default=0) + 1)
        numbers = {one: number or next(unused) for one, number in numbers.items()}
        kept = {
            one: replace(
                primitive,
                depth=depths[one],
                number=numbers[one],
                remaining_us=round(1e6 * remaining_s[one]),
            )
            for one, primitive in self.primitives.items()
        }
        return replace(self, primitives=MappingProxyType(kept))

    @property
    def num_edges(self) -> int:
        return sum(len(primitive.parents) for primitive in self.primitives.values())


class Draft:
    """A graph that is being rewritten; ``graph()`` is the result. Only ``add``, ``put``,
    ``remove``, ``redirect`` and ``reorder`` change it."""

    def __init__(self, graph: PrimitiveGraph) -> None:
        self._graph = graph
        self.primitives = dict(graph.primitives)
        self.results = dict(graph.results)

    def add(self, *primitives: Primitive) -> None:
        """Add primitives; raise ``InvalidArgument`` if the graph has a primitive of that id."""
        for primitive in primitives:
            if primitive.id in self.primitives:
                raise InvalidArgument(f"two primitives have the id {primitive.id!r}: rename one")
            self.primitives[primitive.id] = primitive

    def put(self, primitive: Primitive) -> None:
        """Replace the primitive of the same id."""
        self.primitives[primitive.id] = primitive

    def remove(self, one: str) -> None:
        del self.primitives[one]

    def redirect(self, change: Callable[[Ref], Ref]) -> None:
        """Apply ``change``, which may add primitives, to every reference, also of the results."""
        for primitive in list(self.primitives.values()):
            inputs = {name: change(ref) for name, ref in primitive.inputs.items()}
            when = None if primitive.when is None else change(primitive.when)
            if inputs != primitive.inputs or when != primitive.when:
                self.put(replace(primitive, inputs=MappingProxyType(inputs), when=when))
        self.results = {name: change(ref) for name, ref in self.results.items()}

    def reorder(self, one: str, instead: Iterable[str]) -> None:
        """Let the primitives that come after ``one`` come after all of ``instead``."""
        new = frozenset(instead)
        for primitive in self.primitives.values():
            if one in primitive.after:
                self.put(replace(primitive, after=primitive.after - {one} | new))

    def graph(self) -> PrimitiveGraph:
        return replace(
            self._graph,
            primitives=MappingProxyType(dict(self.primitives)),
            results=MappingProxyType(dict(self.results)),
        )
