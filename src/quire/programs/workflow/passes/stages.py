"""Pass 2: splits a batch that exceeds the efficient batch of its engine into stages.

The results of a stage are used while the next one runs: batchable primitives that take them are cut
at the same places, so that both engines work at the same time.
"""

from __future__ import annotations

from collections import Counter

from quire.programs.workflow.engines.engine import NO_PROFILE
from quire.programs.workflow.graphs.graph import Draft, PrimitiveGraph
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.passes.note import Note, Profiles, Rewritten
from quire.programs.workflow.passes.splitting import inner_cuts, split

NAME = "stages"
MAX_STAGES = 64
"""The most stages of one primitive: more do not overlap better, and each has its cost."""


def stages(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    draft, notes, changed = Draft(graph), list[Note](), False
    sizes = Counter[tuple[str, Op]]()
    for primitive in graph.primitives.values():
        sizes[primitive.node, primitive.op] += primitive.size or 0
    for one in graph.order:
        primitive = draft.primitives[one]
        if not primitive.batched or primitive.size is None:
            if primitive.batched:
                notes.append(Note(NAME, one, "its number of elements is not known yet", False))
            continue
        most = _most(primitive, sizes[primitive.node, primitive.op], profiles)
        cuts = set(range(0, primitive.size, most)) if most else {0}
        behind = inner_cuts(draft, primitive, NAME)
        # a stage behind stages ends where they end, so that it need not wait for two of them
        cuts = _refined(behind | {0}, primitive.size, most) if behind else cuts
        places = sorted(cuts | {primitive.size})
        if len(places) > 2:
            pieces = split(draft, primitive, places, NAME)
            why = "as the stages before it" if behind else f"of at most {most} elements"
            text = f"{primitive.size} elements in {len(pieces)} stages, {why}"
            notes.append(Note(NAME, one, text))
            changed = True
        elif one == primitive.node:  # the notes already say why a piece is not larger
            notes.append(Note(NAME, one, _why_not(primitive.size, most), False))
    return Rewritten(draft.graph() if changed else graph, tuple(notes))


def _most(primitive: Primitive, size: int, profiles: Profiles) -> int | None:
    """Return the most elements of one stage of a component with ``size`` elements in all."""
    most = profiles.get(primitive.engine or "", NO_PROFILE).max_efficient_batch
    return None if most is None else max(most, -(-size // MAX_STAGES))


def _why_not(size: int, most: int | None) -> str:
    if most is None:
        return "its engine has no profile: one batch"
    return f"one batch: {size} of at most {most} elements"


def _refined(starts: set[int], size: int, most: int | None) -> set[int]:
    """Return ``starts``, with further ones where two of them are more than ``most`` apart."""
    if most is None:
        return starts
    ends = [*sorted(starts)[1:], size]
    return {
        place
        for start, end in zip(sorted(starts), ends, strict=True)
        for place in range(start, end, most)
    }
