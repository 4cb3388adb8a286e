"""Pass 3: a prompt whose beginning is ready before its end is prefilled in steps.

Attention is causal: the pages of a prefix do not depend on what follows. Each step takes the parts
that are ready together; it begins as soon as they are, while what the later parts need still runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType

from quire.programs.workflow.graph import Draft, PrimitiveGraph
from quire.programs.workflow.passes.note import Note, Profiles, Rewritten
from quire.programs.workflow.primitives import PREFILLS, Op, Primitive
from quire.programs.workflow.prompts import Part
from quire.programs.workflow.values import Ref, ValueType

NAME = "prefill"
MIN_PREFIX_CHARS = 12
"""Literal text that is too short to be worth a step of its own: a few tokens."""


def prefill(graph: PrimitiveGraph, profiles: Profiles) -> Rewritten:
    draft, notes, changed = Draft(graph), list[Note](), False
    for one in graph.order:
        primitive = graph.primitives[one]
        if primitive.op is Op.GENERATING:
            text = (
                "its model is asked over HTTP: the prompt is sent whole, and its answer comes whole"
            )
            notes.append(Note(NAME, one, text, False))
        if primitive.op not in PREFILLS:
            continue
        steps = _steps(graph, primitive)
        if len(steps) > 1:
            _replace(draft, primitive, steps)
            begins = " | ".join("".join(map(str, step)) for step in steps)
            notes.append(Note(NAME, one, f"in {len(steps)} steps: {begins!r:.160}"))
            changed = True
        elif primitive.op is Op.PREFILLING:
            notes.append(Note(NAME, one, _why_not(graph, primitive), False))
    return Rewritten(draft.graph() if changed else graph, tuple(notes))


def _steps(graph: PrimitiveGraph, primitive: Primitive) -> list[list[Part]]:
    """The parts, cut before each part that waits for what the parts before it do not wait for."""
    state = primitive.inputs.get("state")
    ready = _needs(graph, state) if state is not None else frozenset[str]()
    for other in (*primitive.after, *([primitive.when.primitive] if primitive.when else [])):
        ready |= graph.ancestors.get(other, frozenset()) | {other}
    steps: list[list[Part]] = [[]]
    for part in primitive.parts:
        needs = _needs(graph, primitive.inputs[part.name]) if part.name else frozenset[str]()
        if not needs <= ready and _worth_a_step(steps[-1], first=len(steps) == 1):
            steps.append([])
        steps[-1].append(part)
        ready |= needs
    return steps


def _needs(graph: PrimitiveGraph, ref: Ref) -> frozenset[str]:
    """Every primitive that must have ended before the value is there."""
    if ref.from_query:
        return frozenset()
    return graph.ancestors[ref.primitive] | {ref.primitive}


def _worth_a_step(parts: Sequence[Part], first: bool) -> bool:
    if any(part.name for part in parts):
        return True
    return first and sum(len(part.text) for part in parts) >= MIN_PREFIX_CHARS


def _replace(draft: Draft, whole: Primitive, steps: Sequence[Sequence[Part]]) -> None:
    """A chain of partial prefillings and the full one, which keeps the id."""
    state = whole.inputs.get("state")
    unused = (n for n in count() if f"{whole.id}.{n}" not in draft.primitives)
    for place, parts in enumerate(steps):
        is_last = place == len(steps) - 1
        ends_prompt = is_last and whole.op is not Op.PARTIAL_PREFILLING
        names = [part.name for part in parts if part.name]
        inputs = {} if state is None else {"state": state}
        inputs |= {name: whole.inputs[name] for name in names}
        step = replace(
            whole,
            id=whole.id if is_last else f"{whole.id}.{next(unused)}",
            op=Op.FULL_PREFILLING if ends_prompt else Op.PARTIAL_PREFILLING,
            inputs=MappingProxyType(inputs),
            outputs=MappingProxyType({"state": ValueType.STATE}),
            parts=tuple(parts),
        )
        if is_last:
            draft.put(step)
        else:
            draft.add(step)
        state = Ref(step.id, "state")


def _why_not(graph: PrimitiveGraph, primitive: Primitive) -> str:
    waits = [
        place
        for place, part in enumerate(primitive.parts)
        if part.name and not primitive.inputs[part.name].from_query
    ]
    if primitive.after:
        return "the whole prompt waits for what comes before it"
    if not waits:
        return "the whole prompt is ready at once"
    before = primitive.parts[: waits[0]]
    if not _worth_a_step(before, first=True):
        waited = primitive.parts[waits[0]]
        later = [part.name for part in primitive.parts[waits[0] + 1 :] if part.name]
        early = [name for name in later if name and primitive.inputs[name].from_query]
        behind = f": put {{{early[0]}}}, which is, before it" if early else ""
        return f"begins with {waited}, which is not ready earlier{behind}"
    return "its parts are ready together"
