"""``GrowingGraph``: the graph of a query that runs, in which other primitives replace growths.

Owns order and depth of what has grown. To replace a growth takes as long as what replaces it is
large, however large the graph is, so that a loop of many rounds costs the same in each round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import Ref

MAX_GROWTH_CHARS = 100
"""The longest id of a growth that stands as it is before the ids of what replaces it."""


class Graft(NamedTuple):
    """What has changed. ``scope``: see ``scope_of``. ``new``: the ids of the primitives that
    replace the growth, parents before children. ``behind``: the ids of those that waited for the
    growth."""

    scope: str
    new: tuple[str, ...]
    behind: tuple[str, ...]


def scope_of(growth: str) -> str:
    """Return what stands, with a slash, before the ids of the primitives that replace ``growth``.

    It is the id of ``growth``, or if that is long, its first component, the number of growths
    around those primitives, and a digest: an id is bounded however deep it lies, and it follows
    from its place alone, so that a query that continues finds what it has stored.
    """
    if len(growth) <= MAX_GROWTH_CHARS:
        return growth
    first, *inner = growth.split("/")
    number = inner[0].partition(".")[0]
    num_around = len(inner) + (int(number) - 1 if number.isdigit() else 1)
    digest = blake2b(growth.encode(), digest_size=8).hexdigest()
    return f"{first}/{num_around}.{digest}"


class GrowingGraph:
    """``primitives``, ``children``, ``users`` and ``results``: as of a ``PrimitiveGraph``, and as
    the graph is now. ``at_first``: the ids before it has grown, parents before children."""

    def __init__(self, graph: PrimitiveGraph) -> None:
        self.primitives = dict(graph.primitives)
        self.children = dict(graph.children)
        self.users = dict(graph.users)
        self.results = dict(graph.results)
        self.at_first = graph.order
        self._last_number = max((one.number for one in self.primitives.values()), default=0)

    def graft(
        self,
        one: str,
        part: PrimitiveGraph,
        passed: Mapping[str, Ref],
        seconds: Callable[[Primitive], float] = lambda primitive: 0.0,
    ) -> Graft:
        """Put ``part`` in place of the growth ``one``, whose outputs it gives, and whose parents
        have ended.

        ``part``'s query inputs become ports of ``one``, which has ended and keeps their values; its
        primitives have ``scope_of(one)`` before their ids. ``passed``: outputs that are inputs of
        ``part``. A primitive that waited for the end of ``one``, or that uses its values and
        touches what it changed, waits for all of ``part``. ``seconds``: the time that a primitive
        takes alone. Depths and numbers of all other primitives stay as they are: none of them comes
        before ``part`` and has not ended.
        """
        growth, behind = self.primitives[one], self.children[one]
        scope = scope_of(one)
        instead = _outputs_of(one, {**passed, **part.results})
        ends = frozenset(f"{scope}/{name}" for name, users in part.children.items() if not users)
        for child in behind:
            self.primitives[child] = _redirected(self.primitives[child], growth, instead, ends)
        for name, ref in self.results.items():
            self.results[name] = instead(ref)
        for name, primitive in part.primitives.items():
            self.primitives[f"{scope}/{name}"] = _moved(one, primitive)
        grafted = Graft(scope, tuple(f"{scope}/{name}" for name in part.order), behind)
        self._connect(one, [*behind, *(f"{scope}/{name}" for name in part.primitives)])
        self._place(grafted.new, seconds)
        return grafted

    def _connect(self, one: str, changed: Iterable[str]) -> None:
        """Note the children and users of ``one`` and of what replaces it: all of them are in
        ``changed``."""
        children: dict[str, list[str]] = {one: []}
        users: dict[str, list[str]] = {one: []}
        changed = list(changed)
        for name in changed:
            if name not in self.children:
                children[name], users[name] = [], []
        for name in changed:
            primitive = self.primitives[name]
            sources = primitive.sources
            for parent in sources | primitive.after:
                if parent in children:
                    children[parent].append(name)
                    if parent in sources:
                        users[parent].append(name)
        self.children |= {name: tuple(found) for name, found in children.items()}
        self.users |= {name: tuple(found) for name, found in users.items()}

    def _place(self, new: tuple[str, ...], seconds: Callable[[Primitive], float]) -> None:
        """Set depth, number and remaining time of the ``new`` primitives (see
        ``PrimitiveGraph.with_depths``)."""
        numbers = {name: self._last_number + place for place, name in enumerate(new, 1)}
        self._last_number += len(new)
        for name in reversed(new):
            primitive = self.primitives[name]
            children = [self.primitives[child] for child in self.children[name]]
            below_us = max((child.remaining_us for child in children), default=0)
            self.primitives[name] = replace(
                primitive,
                depth=max((child.depth + 1 for child in children), default=0),
                number=numbers[name],
                remaining_us=round(1e6 * seconds(primitive)) + below_us,
            )


def _outputs_of(one: str, outputs: Mapping[str, Ref]) -> Callable[[Ref], Ref]:
    """Return what a reference to the growth ``one`` becomes. ``outputs``: those of its part."""

    def instead(ref: Ref) -> Ref:
        if ref.primitive != one:
            return ref
        inner = _inside(one, outputs[ref.port])
        if ref.index is not None:
            return inner.element(ref.index)
        if ref.start is not None:
            assert ref.stop is not None, "a part has both ends"
            return inner.part(ref.start, ref.stop)
        return inner

    return instead


def _inside(one: str, ref: Ref) -> Ref:
    """Return a reference of the part that replaces ``one`` as one of the whole graph."""
    return replace(ref, primitive=one if ref.from_query else f"{scope_of(one)}/{ref.primitive}")


def _moved(one: str, primitive: Primitive) -> Primitive:
    """Return a primitive of the part that replaces ``one`` as one of the whole graph."""
    inputs = {name: _inside(one, ref) for name, ref in primitive.inputs.items()}
    return replace(
        primitive,
        id=f"{scope_of(one)}/{primitive.id}",
        inputs=MappingProxyType(inputs),
        after=frozenset(f"{scope_of(one)}/{earlier}" for earlier in primitive.after),
        when=None if primitive.when is None else _inside(one, primitive.when),
    )


def _redirected(
    primitive: Primitive, growth: Primitive, instead: Callable[[Ref], Ref], ends: frozenset[str]
) -> Primitive:
    inputs = {name: instead(ref) for name, ref in primitive.inputs.items()}
    behind = growth.id in primitive.after or primitive.conflicts(growth)
    after = primitive.after - {growth.id} | ends if behind else primitive.after
    when = None if primitive.when is None else instead(primitive.when)
    return replace(primitive, inputs=MappingProxyType(inputs), after=after, when=when)
