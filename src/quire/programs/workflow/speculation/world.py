"""``World``: the known and supposed values of a graph's primitives.

Must not know what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Guess, Op, Primitive
from quire.programs.workflow.graphs.values import Ref
from quire.programs.workflow.speculation.early import EarlyScores
from quire.programs.workflow.speculation.experience import Experience
from quire.programs.workflow.speculation.guesses import as_found

Outputs = Mapping[str, Any]


class World:
    """``branches``: the supposed values of open conditions, by primitive. ``put`` the outputs of
    parents before those of children."""

    def __init__(
        self,
        state: GraphState,
        experience: Experience,
        early: EarlyScores,
        branches: Mapping[str, bool],
    ) -> None:
        self._state, self._experience = state, experience
        self._early_scores, self._branches = early, branches
        self._outputs: dict[str, Outputs] = {}
        self._supposed = set[str]()

    def put(self, primitive: Primitive, outputs: Outputs | None) -> None:
        """Add the outputs of a primitive that has not ended, as it ran ahead; None: suppose
        them."""
        if outputs is None:
            outputs = self._guessed(primitive)
            self._supposed.add(primitive.id)
        elif self.is_supposed(primitive):
            self._supposed.add(primitive.id)
        if outputs is not None:
            self._outputs[primitive.id] = outputs

    def is_supposed(self, primitive: Primitive) -> bool:
        """Whether any of its inputs is supposed."""
        return not primitive.sources.isdisjoint(self._supposed)

    def inputs(self, primitive: Primitive) -> dict[str, Any] | None:
        """Return the inputs of ``primitive``, or None if one is neither known nor supposed."""
        inputs: dict[str, Any] = {}
        for name, ref in primitive.inputs.items():
            value = self.value(ref)
            if value is None:
                return None
            (inputs[name],) = value
        return inputs

    def value(self, ref: Ref) -> tuple[Any] | None:
        """Return the value, in a tuple, or None if it is neither known nor supposed."""
        if ref.from_query or self._state.has_ended(ref.primitive):
            return (self._state.value(ref),) if self._state.has_value(ref) else None
        outputs = self._outputs.get(ref.primitive)
        return None if outputs is None else (ref.take(outputs[ref.port]),)

    def _guessed(self, primitive: Primitive) -> Outputs | None:
        if primitive.guess is Guess.BRANCH and primitive.id in self._branches:
            return {"out": self._branches[primitive.id]}
        if primitive.guess is not Guess.FIRST:
            return None
        best = self._early_scores.best(primitive)
        if best is not None:
            return {"out": best}
        if self._experience.is_worth(primitive.node):
            texts = self._early(primitive.inputs["texts"], primitive.config["top_n"])
            return None if texts is None else {"out": as_found(primitive, texts)}
        return None

    def _early(self, ref: Ref, least: int) -> list[str] | None:
        """Return the first texts of a list, at least ``least`` different ones; of a list that is
        joined from several searches, those of the first searches."""
        whole = self.value(ref)
        if whole is not None:
            return list(whole[0])
        source = self._state.graph.primitives.get(ref.primitive)
        if source is None or source.op is not Op.AGGREGATE or not ref.whole:
            return None
        found: list[str] = []
        for part in source.inputs.values():
            texts = self.value(part)
            if texts is None:
                return None
            found += texts[0]
            if len(dict.fromkeys(found)) >= least:
                return found
        return found
