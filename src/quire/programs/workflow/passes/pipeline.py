"""Pass 4: each element of a model's answer is handed on as soon as it is complete.

The answer is JSON that a schema holds to an array of a known number of elements. The decoding
becomes a chain of partial ones, one for each element, and batchable primitives behind it take one
element each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from quire.programs.workflow.graph import Draft, PrimitiveGraph
from quire.programs.workflow.passes.note import Note, Profiles, Rewritten
from quire.programs.workflow.passes.splitting import inner_cuts, put_in_place, split
from quire.programs.workflow.primitives import Op, Primitive
from quire.programs.workflow.values import Ref, ValueType

NAME = "pipeline"
_OUTPUTS: Mapping[str, ValueType] = MappingProxyType(
    {"out": ValueType.TEXTS, "state": ValueType.STATE}
)


def pipeline(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    draft, notes, changed = Draft(graph), list[Note](), False
    for one in graph.order:
        primitive = draft.primitives[one]
        if primitive.op is Op.DECODING and primitive.config["splittable"]:
            why_not = _why_not(graph, primitive)
            changed = changed or why_not is None
            if why_not is None:
                _chain(draft, primitive)
            text = why_not or f"hands on each of {primitive.size} elements as it is complete"
            notes.append(Note(NAME, one, text, why_not is None))
        elif primitive.batched and primitive.size is not None:
            cuts = inner_cuts(draft, primitive, NAME)
            if cuts:
                split(draft, primitive, sorted(cuts | {0, primitive.size}), NAME)
                notes.append(Note(NAME, one, "takes each element as it comes"))
                changed = True
    return Rewritten(draft.graph() if changed else graph, tuple(notes))


def _why_not(graph: PrimitiveGraph, decoding: Primitive) -> str | None:
    if decoding.size is None:
        return "its schema does not say how many elements there are: minItems and maxItems differ"
    if decoding.size < 2:
        return "it has one element"
    users = (graph.primitives[user] for user in graph.users[decoding.id])
    if not any(_takes_elements(user, decoding) for user in users):
        return "nothing behind it takes element by element"
    return None


def _takes_elements(user: Primitive, decoding: Primitive) -> bool:
    """Whether ``user`` can work on some of the elements: it is batchable, or has them apart as
    parts of a prompt."""
    refs = {name: ref for name, ref in user.inputs.items() if ref.primitive == decoding.id}
    return any(name in user.batched or ref.index is not None for name, ref in refs.items())


def _chain(draft: Draft, whole: Primitive) -> None:
    assert whole.size is not None, "checked before"
    state, pieces = whole.inputs["state"], list[Primitive]()
    for number in range(whole.size):
        piece = replace(
            whole,
            id=f"{whole.id}.{number}",
            op=Op.PARTIAL_DECODING,
            inputs=MappingProxyType({"state": state}),
            outputs=_OUTPUTS,
            size=1,
            first=number,
            config=MappingProxyType({**whole.config, "elements": whole.size}),
        )
        pieces.append(piece)
        state = Ref(piece.id, "state")
    put_in_place(draft, whole, pieces, [(n, n + 1) for n in range(whole.size)], NAME)
