"""Pass 1: drops an order that carries neither data nor a declared effect.

The template orders whole components. The remaining order is what each primitive needs, so that
independent ones run side by side.
"""

from __future__ import annotations

from dataclasses import replace

from quire.programs.workflow.graphs.graph import Draft, PrimitiveGraph
from quire.programs.workflow.passes.note import Note, Profiles, Rewritten

NAME = "prune"


def prune(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    """Drop needless orders; two effects that were ordered only through a third primitive are then
    ordered directly."""
    draft, notes, changed = Draft(graph), list[Note](), False
    with_effects = [one for one in graph.primitives.values() if one.reads or one.writes]
    for primitive in graph.primitives.values():
        kept = frozenset[str]()
        if primitive.reads or primitive.writes:
            before = graph.ancestors[primitive.id]
            needed = {
                one.id for one in with_effects if one.id in before and one.conflicts(primitive)
            }
            kept = frozenset(_nearest(graph, needed - primitive.sources))
        if kept == primitive.after:
            continue
        draft.put(replace(primitive, after=kept))
        changed = True
        for dropped in sorted(primitive.after - kept):
            if dropped not in primitive.sources:
                notes.append(
                    Note(NAME, primitive.id, f"does not wait for {dropped}: it uses nothing of it")
                )
    return Rewritten(draft.graph(), tuple(notes)) if changed else Rewritten(graph)


def _nearest(graph: PrimitiveGraph, ids: set[str]) -> set[str]:
    """Return ``ids`` without those that another one of them already follows because their effects
    conflict."""
    primitives = graph.primitives
    return {
        one
        for one in ids
        if not any(
            one in graph.ancestors[other] and primitives[one].conflicts(primitives[other])
            for other in ids - {one}
        )
    }
