"""Replaces a growth in a graph by the graph that it has become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import Ref


def grafted(
    graph: PrimitiveGraph, one: str, part: PrimitiveGraph, passed: Mapping[str, Ref]
) -> PrimitiveGraph:
    """Return ``graph`` with ``part`` in place of the growth ``one``, whose outputs it gives.

    ``part``'s query inputs become ports of ``one``, which has ended and keeps their values; its
    primitives have the name of ``one`` before their ids. ``passed``: outputs that are inputs of
    ``part``. A primitive that waited for the end of ``one``, or that uses its values and touches
    what it changed, waits for all of ``part``.
    """
    growth = graph.primitives[one]

    def moved(ref: Ref) -> Ref:
        return replace(ref, primitive=one if ref.from_query else f"{one}/{ref.primitive}")

    def instead(ref: Ref) -> Ref:
        if ref.primitive != one:
            return ref
        inner = moved(outputs[ref.port])
        if ref.index is not None:
            return inner.element(ref.index)
        if ref.start is not None:
            assert ref.stop is not None, "a part has both ends"
            return inner.part(ref.start, ref.stop)
        return inner

    outputs = {**passed, **part.results}
    ends = frozenset(f"{one}/{name}" for name, users in part.children.items() if not users)
    primitives = {
        name: _redirected(primitive, growth, instead, ends)
        if one in primitive.parents
        else primitive
        for name, primitive in graph.primitives.items()
    }
    for primitive in part.primitives.values():
        inputs = {name: moved(ref) for name, ref in primitive.inputs.items()}
        primitives[f"{one}/{primitive.id}"] = replace(
            primitive,
            id=f"{one}/{primitive.id}",
            inputs=MappingProxyType(inputs),
            after=frozenset(f"{one}/{earlier}" for earlier in primitive.after),
            when=None if primitive.when is None else moved(primitive.when),
            number=0,
        )
    results = {name: instead(ref) for name, ref in graph.results.items()}
    return PrimitiveGraph(
        MappingProxyType(primitives), MappingProxyType(results), graph.query_inputs
    )


def _redirected(
    primitive: Primitive, growth: Primitive, instead: Callable[[Ref], Ref], ends: frozenset[str]
) -> Primitive:
    inputs = {name: instead(ref) for name, ref in primitive.inputs.items()}
    behind = growth.id in primitive.after or primitive.conflicts(growth)
    after = primitive.after - {growth.id} | ends if behind else primitive.after
    when = None if primitive.when is None else instead(primitive.when)
    return replace(primitive, inputs=MappingProxyType(inputs), after=after, when=when)
