"""Applies the passes to a p-graph until none finds anything (Algorithm 1, GraphOpt).

Owns the rules that a pass must keep. Must not know where the graph comes from.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from quire.core.errors import InvalidArgument
from quire.programs.workflow.engines.durations import seconds_alone
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.optimizing.construction import MAX_PRIMITIVES
from quire.programs.workflow.passes import Note, OptPass, Profiles

MAX_ROUNDS = 32


class OptimizedGraph(NamedTuple):
    """A p-graph, the e-graph that the passes made of it, and their notes."""

    p_graph: PrimitiveGraph
    e_graph: PrimitiveGraph
    notes: tuple[Note, ...]


def optimized(before: PrimitiveGraph, profiles: Profiles, passes: OptPass) -> OptimizedGraph:
    """Apply ``passes`` in their order until a round of them changes nothing.

    Raises:
        InvalidArgument: a pass that breaks a rule.
    """
    graph, done = before, list[Note]()
    for _ in range(MAX_ROUNDS):
        start, idle = graph, list[Note]()
        for name, rule in passes.passes:
            result = rule(graph, profiles)
            _check(name, graph, result.graph)
            graph = result.graph
            done += [note for note in result.notes if note.applied]
            idle += [note for note in result.notes if not note.applied]
        if graph is start:
            seconds = partial(seconds_alone, profiles=profiles)
            whole, best = before.with_depths(seconds), graph.with_depths(seconds)
            return OptimizedGraph(whole, best, (*done, *idle, *_growing(graph)))
    names = ", ".join(name for name, _ in passes.passes)
    raise InvalidArgument(
        f"the passes {names} still change the graph after {MAX_ROUNDS} rounds: a pass must return "
        "the graph that it was given if it has nothing to do",
        param="passes",
    )


def _check(name: str, before: PrimitiveGraph, after: PrimitiveGraph) -> None:
    """Refuse a pass that has changed the results or made the graph too large."""
    if after is before:
        return
    if after.results.keys() != before.results.keys():
        raise InvalidArgument(f"the pass {name!r} changed the results: keep them", param="passes")
    if len(after.primitives) > 4 * MAX_PRIMITIVES:
        raise InvalidArgument(
            f"the pass {name!r} made a graph of {len(after.primitives)} primitives; at most "
            f"{4 * MAX_PRIMITIVES} are allowed: raise the engine's max_efficient_batch",
            param="passes",
        )


def _growing(graph: PrimitiveGraph) -> list[Note]:
    text = "its place is taken by others while the query runs; the passes are applied to them then"
    return [
        Note("growth", one, text, False)
        for one in graph.order
        if graph.primitives[one].op is Op.GROWTH
    ]
