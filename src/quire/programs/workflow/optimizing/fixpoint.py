"""Applies the passes to a p-graph until none finds anything (Algorithm 1, GraphOpt).

Owns the rules that a pass must keep. Must not know where the graph comes from.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.building import MAX_GROWN_PRIMITIVES
from quire.programs.workflow.engines.durations import seconds_alone
from quire.programs.workflow.graphs.graph import PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Op
from quire.programs.workflow.passes import KNOWN, Note, OptPass, Pass, Profiles, Rewritten
from quire.programs.workflow.passes.applying import applied

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
        start, idle, changing = graph, list[Note](), list[str]()
        for name, rule in passes.passes:
            result = _applied(name, rule, graph, profiles)
            if result.graph is not graph:
                changing.append(name)
            graph = result.graph
            done += [note for note in result.notes if note.applied]
            idle += [note for note in result.notes if not note.applied]
        if graph is start:
            seconds = partial(seconds_alone, profiles=profiles)
            whole, best = before.with_depths(seconds), graph.with_depths(seconds)
            return OptimizedGraph(whole, best, (*done, *idle, *_growing(graph)))
    raise InvalidArgument(
        f"the passes {', '.join(changing)} still change the graph after {MAX_ROUNDS} rounds: a "
        "pass must return the graph that it was given if it has nothing to do",
        param="passes",
    )


def _applied(name: str, rule: Pass, before: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    """Apply a pass. Refuse one that has changed the results or made the graph too large, and one of
    a developer that breaks another rule."""
    is_ours = (name, rule) in KNOWN
    result = rule(before, profiles) if is_ours else applied(name, rule, before, profiles)
    if len(result.graph.primitives) > MAX_GROWN_PRIMITIVES:
        raise InvalidArgument(
            f"the pass {name!r} made a graph of {len(result.graph.primitives)} primitives; at most "
            f"{MAX_GROWN_PRIMITIVES} are allowed: ask for fewer elements, or let the pass make "
            "fewer",
            param="passes",
        )
    return result


def _growing(graph: PrimitiveGraph) -> list[Note]:
    text = "its place is taken by others while the query runs; the passes are applied to them then"
    return [
        Note("growth", one, text, False)
        for one in graph.order
        if graph.primitives[one].op is Op.GROWTH
    ]
