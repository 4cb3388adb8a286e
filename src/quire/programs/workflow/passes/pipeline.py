"""Pass 4: passes on each element of a model's answer as soon as it is complete.

The answer is JSON that a schema holds to an array of a known number of elements. The decoding
becomes a chain of partial ones, one for each element, and batchable primitives behind it take one
element each. The answers of a batchable model are elements as well: a primitive that needs some of
them waits only for their calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from quire.programs.workflow.engines.engine import NO_PROFILE
from quire.programs.workflow.graphs.graph import Draft, PrimitiveGraph
from quire.programs.workflow.graphs.primitives import EACH, Op, Primitive
from quire.programs.workflow.graphs.values import Ref, ValueType
from quire.programs.workflow.passes.note import Note, Profiles, Rewritten
from quire.programs.workflow.passes.splitting import (
    drop_unused,
    inner_cuts,
    narrowed,
    put_in_place,
    split,
)

NAME = "pipeline"
_OUTPUTS: Mapping[str, ValueType] = MappingProxyType(
    {"out": ValueType.TEXTS, "state": ValueType.STATE}
)


def pipeline(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    draft, notes = Draft(graph), list[Note]()
    for one in graph.order:
        primitive = draft.primitives.get(one)
        if primitive is None:  # an Aggregate that is not used any more
            continue
        if primitive.op is Op.DECODING and primitive.config["splittable"]:
            why_not = _why_not(graph, primitive)
            if why_not is None:
                _chain(draft, primitive)
            text = why_not or f"hands on each of {primitive.size} elements as it is complete"
            notes.append(Note(NAME, one, text, why_not is None))
        elif _is_each(primitive):
            if _hand_on(graph, draft, primitive):
                text = f"hands on each of {len(primitive.inputs)} elements as it is complete"
                notes.append(Note(NAME, one, text))
        elif primitive.batched and primitive.size is not None:
            cuts = inner_cuts(draft, primitive, NAME)
            origin = NAME if cuts else EACH
            cuts = cuts or _cuts_of_each(graph, draft, primitive, profiles)
            if cuts:
                split(draft, primitive, sorted(cuts | {0, primitive.size}), origin)
                notes.append(Note(NAME, one, "takes each element as it comes"))
    changed = any(note.applied for note in notes)
    return Rewritten(draft.graph() if changed else graph, tuple(notes))


def _hand_on(graph: PrimitiveGraph, draft: Draft, gathered: Primitive) -> bool:
    """Let the users of some elements of ``gathered`` wait only for those; return whether there
    were any."""
    users = (draft.primitives.get(user) for user in graph.users[gathered.id])
    refs = (ref for user in users if user is not None for ref in user.refs())
    if all(ref.whole for ref in refs if ref.primitive == gathered.id):
        return False
    draft.redirect(lambda ref: narrowed(draft, ref) if ref.primitive == gathered.id else ref)
    drop_unused(draft, gathered.id)
    return True


def _cuts_of_each(
    graph: PrimitiveGraph, draft: Draft, primitive: Primitive, profiles: Profiles
) -> set[int]:
    """Return the cuts between all elements, if each element of ``primitive`` can begin when one
    call has ended. An engine with an efficient batch gets the stages of pass 2 instead."""
    if profiles.get(primitive.engine or "", NO_PROFILE).max_efficient_batch is not None:
        return set()
    refs = [primitive.inputs[name] for name in primitive.batched]
    each = [ref for ref in refs if _is_each(graph.primitives.get(ref.primitive))]
    sources = {source for ref in each for source in graph.primitives[ref.primitive].sources}
    early = frozenset[str]().union(*(graph.ancestors[one] for one in sources))
    comes = all(ref in each or ref.from_query or ref.primitive in early for ref in refs)
    return inner_cuts(draft, primitive, EACH) if comes else set()


def _is_each(primitive: Primitive | None) -> bool:
    return (
        primitive is not None
        and primitive.op is Op.AGGREGATE
        and primitive.config["origin"] == EACH
    )


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
