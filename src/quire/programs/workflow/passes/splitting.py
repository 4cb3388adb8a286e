"""Splits a batchable primitive into several, each with some of its elements, for passes 2 and 4.

Owns the one rule that makes splitting safe: a user of elements of the whole uses the same elements
of the pieces, directly where one piece has them all, else through an Aggregate of the pieces that
have them. If one component takes elements of another, their order holds piece by piece.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any

from quire.programs.workflow.graphs.graph import Draft
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.values import LISTS, Ref


def split(draft: Draft, whole: Primitive, cuts: Sequence[int], origin: str) -> list[Primitive]:
    """Replace ``whole`` by pieces of the elements between ``cuts``, which begin with 0 and end with
    its size. ``origin``: the pass that makes the pieces, noted in the Aggregate."""
    after = whole.after - _handed_on(draft, whole)
    pieces = [
        replace(
            whole,
            id=f"{whole.id}.{number}",
            after=after,
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
    fan = whole.fan
    spans = None if fan is None else [(start * fan, stop * fan) for start, stop in pairwise(cuts)]
    put_in_place(draft, whole, pieces, spans, origin)
    for ref in whole.inputs.values():
        drop_unused(draft, ref.primitive)
    return pieces


def put_in_place(
    draft: Draft,
    whole: Primitive,
    pieces: Sequence[Primitive],
    spans: Sequence[tuple[int, int]] | None,
    origin: str,
) -> None:
    """Replace ``whole`` by ``pieces``, whose outputs are its elements of ``spans``. None: their
    numbers of elements are not known, so no primitive uses only some of the elements."""
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
    """Return a reference to the same elements that waits for as few pieces as possible.

    For some elements of an Aggregate it refers to the piece that has them, or to a smaller
    Aggregate; for anything else it is ``ref``.
    """
    source = draft.primitives.get(ref.primitive)
    if source is None or source.op is not Op.AGGREGATE or ref.whole:
        return ref
    first = ref.index if ref.index is not None else ref.start
    assert first is not None, "a reference that is not whole has a place"
    last = first + 1 if ref.stop is None else ref.stop
    place, spans = _place_of(source, first), spans_of(source)
    start, stop = spans[place]
    if start <= first and last <= stop:
        piece = _piece(source, place)
        if ref.index is not None:
            return narrowed(draft, piece.element(first - start))
        return _part_of(draft, piece, (start, stop), first, last)
    if (first, last) == (0, spans[-1][1]):
        return Ref(source.id)
    return Ref(_smaller(draft, source, first, last))


def spans_of(aggregate: Primitive) -> Sequence[tuple[int, int]]:
    """Return the elements of an Aggregate that each of its inputs gives."""
    spans: Sequence[tuple[int, int]] = aggregate.config["spans"]
    return spans


def _place_of(aggregate: Primitive, element: int) -> int:
    """Return the number of the input that gives ``element``."""
    return bisect_right(spans_of(aggregate), element, key=lambda span: span[0]) - 1


def _piece(aggregate: Primitive, place: int) -> Ref:
    return next(islice(aggregate.inputs.values(), place, None))


def drop_unused(draft: Draft, one: str) -> None:
    """Remove ``one`` if it is an unused Aggregate, and the Aggregates that only it has used."""
    dropped = draft.primitives.get(one)
    if dropped is None or dropped.op is not Op.AGGREGATE:
        return
    used = any(one in primitive.parents for primitive in draft.primitives.values())
    if not used and all(ref.primitive != one for ref in draft.results.values()):
        draft.remove(one)
        for source in sorted(dropped.sources):
            drop_unused(draft, source)


def inner_cuts(draft: Draft, primitive: Primitive, origin: str) -> set[int]:
    """Return the places where the elements of a batchable primitive begin to come from another
    piece of an Aggregate of ``origin``."""
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


def _handed_on(draft: Draft, whole: Primitive) -> frozenset[str]:
    """Return the primitives of ``whole.after`` for which each piece need not wait.

    They belong to a component whose elements ``whole`` takes, and no effect orders them: each piece
    waits for the primitives that give its own elements.
    """
    nodes = {
        draft.primitives[ref.primitive].node
        for ref in (whole.inputs[name] for name in whole.batched)
        if not ref.from_query
    }
    before = (draft.primitives[one] for one in whole.after)
    return frozenset(one.id for one in before if one.node in nodes and not one.conflicts(whole))


def _part_of(draft: Draft, piece: Ref, span: tuple[int, int], first: int, last: int) -> Ref:
    """Refer to the elements ``first`` to ``last`` of an Aggregate, which ``piece`` gives as part of
    its ``span``."""
    if (first, last) == span:
        return piece
    return narrowed(draft, piece.part(first - span[0], last - span[0]))


def _smaller(draft: Draft, source: Primitive, first: int, last: int) -> str:
    """Add an Aggregate of only the elements ``first`` to ``last`` of ``source``; return its id."""
    made = f"{source.id}.{first}_{last}"
    if made in draft.primitives:
        return made
    inputs: dict[str, Ref] = {}
    spans: list[tuple[int, int]] = []
    for place in range(_place_of(source, first), _place_of(source, last - 1) + 1):
        start, stop = spans_of(source)[place]
        begin, end = max(first, start), min(last, stop)
        if begin < end:
            piece = _piece(source, place)
            inputs[str(len(inputs))] = _part_of(draft, piece, (start, stop), begin, end)
            spans.append((begin - first, end - first))
    draft.add(
        replace(
            source,
            id=made,
            inputs=MappingProxyType(inputs),
            after=frozenset(),
            size=last - first,
            config=MappingProxyType({**source.config, "spans": tuple(spans)}),
        )
    )
    return made


def _aggregate(
    whole: Primitive,
    pieces: Sequence[Primitive],
    spans: Sequence[tuple[int, int]] | None,
    origin: str,
) -> Primitive:
    kind = whole.outputs["out"]
    config: dict[str, Any] = {"origin": origin, "spans": tuple(spans or ())}
    return Primitive(
        id=f"{whole.id}.all",
        op=Op.AGGREGATE,
        node=whole.node,
        engine=None,
        inputs=MappingProxyType({str(n): Ref(piece.id) for n, piece in enumerate(pieces)}),
        outputs=MappingProxyType({"out": kind}),
        size=spans[-1][1] if spans and kind in LISTS else None,
        config=MappingProxyType(config),
    )
