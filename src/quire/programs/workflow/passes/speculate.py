"""A fifth pass: marks what may run in spare time before it is known to be needed.

It changes no edge. It notes of which primitives the outputs may be supposed (``Primitive.guess``),
and which may run on supposed values (``Primitive.ahead``): those behind them that have no effect
and whose engine serves all other work first. What runs ahead is decided while the query runs.
"""

from __future__ import annotations

from dataclasses import replace

from quire.programs.workflow.graphs.graph import Draft, PrimitiveGraph
from quire.programs.workflow.graphs.primitives import CONTROL_FLOW, PREFILLS, Guess, Op, Primitive
from quire.programs.workflow.passes.note import Note, Profiles, Rewritten
from quire.programs.workflow.speculation.stored_texts import stored_before

NAME = "speculate"
_CALLS = PREFILLS | {Op.DECODING, Op.PARTIAL_DECODING}
_READS = frozenset({Op.SEARCH, Op.SEARCHING})


def speculate(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    draft, notes, changed = Draft(graph), list[Note](), False
    guesses = {one: _guess(graph, graph.primitives[one]) for one in graph.order}
    supposed = set[str]()
    """Primitives whose outputs may be known or supposed before those of all their ancestors are."""
    for one in graph.order:
        primitive, guess = graph.primitives[one], guesses[one]
        behind = sorted(primitive.sources & supposed)
        why_not = _why_not(primitive, supposed) if behind else None
        ahead = bool(behind) and why_not is None
        if guess in (Guess.BRANCH, Guess.FIRST) or ahead:
            supposed.add(one)
        is_new = (guess, ahead) != (primitive.guess, primitive.ahead)
        if is_new:
            draft.put(replace(primitive, guess=guess, ahead=ahead))
            changed = True
        told = _notes(primitive, guess, behind, why_not)
        notes += [note for note in told if is_new or not note.applied]
    return Rewritten(draft.graph() if changed else graph, tuple(notes))


def _guess(graph: PrimitiveGraph, primitive: Primitive) -> Guess | None:
    users = [graph.primitives[user] for user in graph.users[primitive.id]]
    if primitive.op is Op.CONDITION and any(_is_when(user, primitive) for user in users):
        return Guess.BRANCH
    if primitive.op is Op.RERANKING and stored_before(graph, primitive):
        return Guess.STORED
    return Guess.FIRST if primitive.op is Op.CHOOSING and users else None


def _is_when(user: Primitive, condition: Primitive) -> bool:
    return user.when is not None and user.when.primitive == condition.id


def _why_not(primitive: Primitive, supposed: set[str]) -> str | None:
    """Return why ``primitive`` may not run on supposed values, or None if it may."""
    op = primitive.op
    if primitive.after & supposed:
        return f"waits for the end of {min(primitive.after & supposed)}"
    if primitive.writes or op is Op.INGESTION or (op is Op.TOOL and not _is_pure(primitive)):
        return "may have an effect"
    if op is Op.GROWTH:
        return "becomes other primitives"
    if op is Op.GENERATING:
        return "its model is behind HTTP: whether it is idle is not known"
    if op in _CALLS or op in _READS or op in CONTROL_FLOW or op is Op.TOOL:
        return None
    return "its engine takes whole batches, which cannot give way"


def _is_pure(primitive: Primitive) -> bool:
    return bool(primitive.config.get("pure"))


def _notes(
    primitive: Primitive, guess: Guess | None, behind: list[str], why_not: str | None
) -> list[Note]:
    one, likely = primitive.id, primitive.config.get("likely")
    if guess is Guess.BRANCH:
        what = f"{likely} (stated)".lower() if likely is not None else "as it mostly was"
        return [Note(NAME, one, f"is supposed to be {what} until it is decided")]
    if guess is Guess.FIRST:
        return [Note(NAME, one, "is supposed to keep the order of the search until all is scored")]
    if guess is Guess.STORED:
        return [Note(NAME, one, "scores what is stored before it is found, in spare time")]
    if not behind or primitive.op in CONTROL_FLOW - {Op.GROWTH}:
        return []
    if why_not is not None:
        return [Note(NAME, one, f"does not run ahead: {why_not}", False)]
    return [Note(NAME, one, f"may run before {', '.join(behind)} is known, in spare time")]
