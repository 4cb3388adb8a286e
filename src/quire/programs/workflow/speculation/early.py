"""``EarlyScores``: scores the texts that a query stores before its search has found them.

A score depends only on the question and its own text. A search finds texts that were stored, so
these are scored in spare time, and the ranking uses the scores. They also serve to suppose which
texts are the best. Must not know what runs a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from quire.programs.workflow.graphs.control_flow import chosen
from quire.programs.workflow.graphs.object_store import GraphState
from quire.programs.workflow.graphs.primitives import Guess, Primitive
from quire.programs.workflow.speculation.experience import MIN_CHANCE, Experience
from quire.programs.workflow.speculation.run import Run
from quire.programs.workflow.speculation.stored_texts import StoredTexts

MAX_TEXTS = 256
"""The most texts of one ranking that are scored early."""


class EarlyScores:
    """The early scores of one query, by component; one in a growth is another than one of the same
    name outside. A component has one run until the first of its rankings starts, which uses the
    scores. They are kept until its last primitive has ended."""

    def __init__(self, state: GraphState, experience: Experience) -> None:
        self._state, self._experience = state, experience
        self._stored = StoredTexts(state)
        self._runs: dict[str, Run] = {}
        self._open = dict[str, Run]()
        """The runs of components whose rankings have not started."""

    @property
    def open_runs(self) -> Iterable[Run]:
        return self._open.values()

    def grew(self, new: Iterable[str]) -> None:
        """Note the primitives ``new`` of the query's graph."""
        self._stored.grew(new)

    def begin(self, marked: Sequence[Primitive]) -> list[Run]:
        """Make new runs for rankings whose stored texts are known. ``marked``: the primitives that
        have not ended."""
        begun: list[Run] = []
        for primitive in marked:
            place = _place(primitive)
            if primitive.guess is Guess.STORED and place not in self._runs:
                run = self._run_of(primitive, marked)
                if run is not None:
                    self._runs[place] = self._open[place] = run
                    begun.append(run)
        return begun

    def end(self, marked: Sequence[Primitive]) -> list[Run]:
        """Forget the scores of components that have ended; return the runs that will not be used,
        because their branch was not taken. ``marked``: as of ``begin``."""
        left = {_place(one) for one in marked if one.guess in (Guess.STORED, Guess.FIRST)}
        over = [place for place in self._runs if place not in left]
        for place in over:
            del self._runs[place]
        return [self._open.pop(place) for place in over if place in self._open]

    def claim(self, primitive: Primitive) -> Run | None:
        """Note that a ranking starts; return its component's run if it is the first to start."""
        return self._open.pop(_place(primitive), None)

    def best(self, choosing: Primitive) -> list[str] | None:
        """Return the texts that are supposed to be chosen by their scores, or None if the scores
        are not known or such choices were mostly wrong."""
        found = self._best(choosing)
        name = f"{choosing.node}.scored"
        return found if found is not None and self._experience.is_worth(name) else None

    def _best(self, choosing: Primitive) -> list[str] | None:
        run = self._runs.get(_place(choosing))
        if run is None or run.outputs is None:
            return None
        return chosen(run.inputs["texts"], run.outputs["out"], choosing.config["top_n"])

    def learn(self, choosing: Primitive, found: Sequence[str], ranked: Sequence[str]) -> None:
        """Learn from a ranking: the texts that were ``found`` are ``ranked``."""
        run = self._runs.get(_place(choosing))
        if run is None:
            return
        scored = dict.fromkeys(run.inputs["texts"])
        share = len(scored.keys() & set(found)) / len(scored)
        self._experience.note(f"{choosing.node}.early", share)
        supposed = self._best(choosing)
        if supposed is not None and ranked:
            right = num_equal(supposed, ranked) / len(ranked)
            self._experience.note(f"{choosing.node}.scored", right)

    def _run_of(self, primitive: Primitive, marked: Sequence[Primitive]) -> Run | None:
        asked = primitive.inputs["text"]
        has_begun = all(map(self._state.has_ended, primitive.parents))
        if has_begun or not self._state.has_value(asked):
            return None
        texts = self._stored.before(primitive)
        if not texts or not self._is_worth(primitive, len(texts), marked):
            return None
        inputs = {"text": self._state.value(asked), "texts": texts}
        return Run(replace(primitive, id=f"{_place(primitive)}.early", size=None), inputs)

    def _is_worth(self, primitive: Primitive, num_texts: int, marked: Sequence[Primitive]) -> bool:
        """Whether enough of ``num_texts`` texts are likely to be found."""
        sizes = [one.size for one in marked if one.node == primitive.node and one.guess]
        num_found = sum(size for size in sizes if size is not None)
        name = f"{primitive.node}.early"
        is_few = num_texts <= MAX_TEXTS and MIN_CHANCE * num_texts <= num_found
        return is_few and self._experience.is_worth(name)


def _place(primitive: Primitive) -> str:
    """Return the name of its component, behind the id of the growth that has made it."""
    growth, between, _ = primitive.id.rpartition("/")
    return f"{growth}{between}{primitive.node}"


def num_equal(supposed: Sequence[str], ranked: Sequence[str]) -> int:
    """Count the texts at the beginning that are equal in both."""
    num = 0
    for one, other in zip(supposed, ranked, strict=False):
        if one != other:
            break
        num += 1
    return num
