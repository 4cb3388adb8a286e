"""``Pass``: one rule of the optimiser, and its notes about a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from quire.programs.workflow.engines.engine import Profile
from quire.programs.workflow.graphs.graph import PrimitiveGraph


@dataclass(frozen=True, slots=True)
class Note:
    """What a pass did to primitive ``where``, or why it did nothing."""

    rule: str
    where: str
    text: str
    applied: bool = True


def folded(notes: Iterable[Note]) -> list[Note]:
    """Merge the ``notes`` that are the same for several primitives of one component:
    ``situate.0.prefill and 27 more``."""
    places: dict[tuple[object, ...], list[Note]] = {}
    for note in notes:
        component = note.where.partition(".")[0]
        places.setdefault((note.rule, component, note.text, note.applied), []).append(note)
    return [
        first if not more else replace(first, where=f"{first.where} and {len(more)} more")
        for first, *more in places.values()
    ]


class Rewritten(NamedTuple):
    graph: PrimitiveGraph
    notes: tuple[Note, ...] = ()


Profiles = Mapping[str, Profile]
"""Profiles by the name of the engine."""

Pass = Callable[[PrimitiveGraph, Profiles], Rewritten]
"""Returns the same graph object if there is nothing to do. It may not change what a graph
computes."""
