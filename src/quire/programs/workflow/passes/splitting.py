"""Splits a batchable primitive into several, each with some of its elements, for passes 2 and 4.

Owns the one rule that makes splitting safe: whoever used elements of the whole uses the same
elements of the pieces, directly where one piece has them all, else through an Aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from quire.programs.workflow.graph import Draft
from quire.programs.workflow.primitives import Op, Primitive
from quire.programs.workflow.values import LISTS, Ref


def split(draft: Draft, whole: Primitive, cuts: Sequence[int], origin: str) -> list[Primitive]:
    """Replace ``whole`` by pieces of the elements between ``cuts``, which begin with 0 and end with
    its size. ``origin``: the pass for which the pieces are, noted in the Aggregate."""
    pieces = [
        replace(
            whole,
            id=f"{whole.id}.{number}",
            inputs=MappingProxyType(
                {
                    name: narrowed(draft, ref.part(start, stop)) if name in whole.batched else ref
                    for name, ref in whole.inputs.items()
                }
            ),
            size=stop - start,
            first=whole.first + start,
        )
        for number, (start, stop) in enumerate(pairwise(cuts))
    ]
    spans = [(start * whole.fan, stop * whole.fan) for start, stop in pairwise(cuts)]
    put_in_place(draft, whole, pieces, spans, origin)
    for ref in whole.inputs.values():
        drop_unused(draft, ref.primitive)
    return pieces


def put_in_place(
    draft: Draft,
    whole: Primitive,
    pieces: Sequence[Primitive],
    spans: Sequence[tuple[int, int]],
    origin: str,
) -> None:
    """Replace ``whole`` by ``pieces``, whose outputs are its elements of ``spans``."""
    draft.remove(whole.id)
    draft.add(*pieces)
    gathered = _aggregate(whole, pieces, spans, origin)
    draft.add(gathered)
    draft.redirect(
        lambda ref: (
            narrowed(draft, replace(ref, primitive=gathered.id))
            if ref.primitive == whole.id
            else ref
        )
    )
    draft.reorder(whole.id, (piece.id for piece in pieces))
    drop_unused(draft, gathered.id)


def narrowed(draft: Draft, ref: Ref) -> Ref:
    """``ref``, or the same elements of one piece if ``ref`` is to an Aggregate and one piece has
    them all."""
    source = draft.primitives.get(ref.primitive)
    if source is None or source.op is not Op.AGGREGATE or ref.whole:
        return ref
    first = ref.index if ref.index is not None else ref.start
    assert first is not None, "a reference that is not whole has a place"
    last = first + 1 if ref.stop is None else ref.stop
    for piece, (start, stop) in zip(source.inputs.values(), spans_of(source), strict=True):
        if start <= first and last <= stop:
            if ref.index is not None:
                return narrowed(draft, piece.element(first - start))
            if (first, last) == (start, stop):
                return piece
            return narrowed(draft, piece.part(first - start, last - start))
    return ref


def spans_of(aggregate: Primitive) -> Sequence[tuple[int, int]]:
    """The elements of an Aggregate that each of its inputs gives."""
    spans: Sequence[tuple[int, int]] = aggregate.config["spans"]
    return spans


def drop_unused(draft: Draft, one: str) -> None:
    """Remove the primitive ``one`` if it is an Aggregate that nobody uses."""
    if one not in draft.primitives or draft.primitives[one].op is not Op.AGGREGATE:
        return
    used = any(one in primitive.parents for primitive in draft.primitives.values())
    if not used and all(ref.primitive != one for ref in draft.results.values()):
        draft.remove(one)


def inner_cuts(draft: Draft, primitive: Primitive, origin: str) -> set[int]:
    """Where the elements of a batchable primitive come from different pieces of an Aggregate of
    ``origin``."""
    cuts = set[int]()
    for name in primitive.batched:
        ref = primitive.inputs[name]
        source = draft.primitives.get(ref.primitive)
        if source is None or source.op is not Op.AGGREGATE or source.config["origin"] != origin:
            continue
        assert primitive.size is not None, "an Aggregate of a known size has users of a known size"
        base = ref.start or 0
        cuts |= {stop - base for _, stop in spans_of(source)}
        cuts = {cut for cut in cuts if 0 < cut < primitive.size}
    return cuts


def _aggregate(
    whole: Primitive,
    pieces: Sequence[Primitive],
    spans: Sequence[tuple[int, int]],
    origin: str,
) -> Primitive:
    kind = whole.outputs["out"]
    config: dict[str, Any] = {"origin": origin, "spans": tuple(spans)}
    return Primitive(
        id=f"{whole.id}.all",
        op=Op.AGGREGATE,
        node=whole.node,
        engine=None,
        inputs=MappingProxyType({str(n): Ref(piece.id) for n, piece in enumerate(pieces)}),
        outputs=MappingProxyType({"out": kind}),
        size=spans[-1][1] if kind in LISTS else None,
        config=MappingProxyType(config),
    )
