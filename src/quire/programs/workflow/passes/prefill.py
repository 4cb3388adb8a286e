"""Pass 3: prefills a prompt in steps if its beginning is ready before its end.

Attention is causal: the pages of a prefix do not depend on what follows. Each step takes the parts
that are ready together; it begins as soon as they are, while what the later parts need still runs.
Each step costs the engine one more message, during which others wait; it must save at least that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType

from quire.programs.workflow.engines.durations import CHARS_PER_TOKEN, value_tokens
from quire.programs.workflow.engines.engine import NO_PROFILE, Profile
from quire.programs.workflow.graphs.graph import Draft, PrimitiveGraph
from quire.programs.workflow.graphs.primitives import PREFILLS, Op, Primitive
from quire.programs.workflow.graphs.prompts import PromptPart
from quire.programs.workflow.graphs.values import Ref, ValueType
from quire.programs.workflow.passes.note import Note, Profiles, Rewritten

NAME = "prefill"
MIN_PREFIX_CHARS = 12
"""Literal text shorter than this, a few tokens, is not worth a step of its own on an engine without
a profile."""


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
        worth = _Worth(graph, primitive, profiles.get(primitive.engine or "", NO_PROFILE))
        steps = _steps(graph, primitive, worth)
        if len(steps) > 1:
            _replace(draft, primitive, steps)
            begins = " | ".join("".join(map(str, step)) for step in steps)
            notes.append(Note(NAME, one, f"in {len(steps)} steps: {begins!r:.160}"))
            changed = True
        elif primitive.op is Op.PREFILLING:
            notes.append(Note(NAME, one, _why_not(primitive, worth), False))
    return Rewritten(draft.graph() if changed else graph, tuple(notes))


class _Worth:
    """Whether parts of the prompt of ``primitive`` are worth a step of their own."""

    def __init__(self, graph: PrimitiveGraph, primitive: Primitive, profile: Profile) -> None:
        self._graph, self._primitive, self._profile = graph, primitive, profile

    @property
    def is_known(self) -> bool:
        """Whether the engine has a profile."""
        return bool(self._profile.times)

    def __call__(self, parts: Sequence[PromptPart], first: bool) -> bool:
        if self.is_known:
            message_s = self._profile.seconds(1)
            num_tokens = sum(self._tokens_of(part) for part in parts)
            return self._profile.seconds(max(1, num_tokens)) - message_s >= message_s
        if any(part.name for part in parts):
            return True
        return first and sum(len(part.text) for part in parts) >= MIN_PREFIX_CHARS

    def _tokens_of(self, part: PromptPart) -> int:
        if part.name is None:
            return len(part.text) // CHARS_PER_TOKEN
        ref = self._primitive.inputs[part.name]
        source = self._graph.primitives.get(ref.primitive)
        most = value_tokens(ref)
        return most if source is None else min(most, source.config.get("max_tokens", most))


def _steps(graph: PrimitiveGraph, primitive: Primitive, worth: _Worth) -> list[list[PromptPart]]:
    """Cut the parts before each one that waits for something that those before do not wait for."""
    state = primitive.inputs.get("state")
    ready = _needs(graph, state) if state is not None else frozenset[str]()
    for other in (*primitive.after, *([primitive.when.primitive] if primitive.when else [])):
        ready |= graph.ancestors.get(other, frozenset()) | {other}
    steps: list[list[PromptPart]] = [[]]
    for part in primitive.parts:
        needs = _needs(graph, primitive.inputs[part.name]) if part.name else frozenset[str]()
        if not needs <= ready and worth(steps[-1], first=len(steps) == 1):
            steps.append([])
        steps[-1].append(part)
        ready |= needs
    return steps


def _needs(graph: PrimitiveGraph, ref: Ref) -> frozenset[str]:
    """Return every primitive that must have ended before the value exists."""
    if ref.from_query:
        return frozenset()
    return graph.ancestors[ref.primitive] | {ref.primitive}


def _replace(draft: Draft, whole: Primitive, steps: Sequence[Sequence[PromptPart]]) -> None:
    """Replace ``whole`` by a chain of partial prefillings and the full one, which keeps its id."""
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


def _why_not(primitive: Primitive, worth: _Worth) -> str:
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
    if worth.is_known and any(part.name for part in before) and not worth(before, first=True):
        return (
            "its beginning is short: a step of its own would take the engine longer than it saves"
        )
    if not worth(before, first=True):
        waited = primitive.parts[waits[0]]
        later = [part.name for part in primitive.parts[waits[0] + 1 :] if part.name]
        early = [name for name in later if name and primitive.inputs[name].from_query]
        behind = f": put {{{early[0]}}}, which is, before it" if early else ""
        return f"begins with {waited}, which is not ready earlier{behind}"
    return "its parts are ready together"
