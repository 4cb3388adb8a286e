"""Says what runs ahead in a paced query, and by which values its runs are told apart.

Texts are replaced by names: a value is named after its primitive and what this has worked on, so
that what follows from a wrong supposition has another name. How a search and a ranking turn out is
drawn for each query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from zlib import crc32

from benchmarks.ayo.asking import ModelCall
from benchmarks.ayo.modules import TOP_N
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.values import LISTS, ValueType
from quire.programs.workflow.speculation import Experience

SAME_ORDER = 0.5
"""That the next best text of a ranking is the next one that the search has found, as long as all
before it were."""
FOUND = 0.9
"""That the next best of all stored texts is one that the search finds."""

MOST_CHUNKS = 256
"""Of a document; who takes chunks takes its own."""


@dataclass(slots=True)
class Counts:
    """The runs ahead of all queries of one application, and the tokens of dropped answers."""

    begun: int = 0
    kept: int = 0
    dropped: int = 0
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """What the queries of one application share. ``same_order`` and ``found``: see ``SAME_ORDER``
    and ``FOUND``."""

    experience: Experience
    counts: Counts
    same_order: float = SAME_ORDER
    found: float = FOUND

    def outcome(self, seed: int, searches: bool) -> Outcome:
        return Outcome(self, seed, searches)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one query turns out; ``seed`` is its own."""

    speculation: Speculation
    seed: int
    searches: bool

    def outputs_of(
        self, primitive: Primitive, inputs: Mapping[str, Any], stored: Sequence[str]
    ) -> dict[str, Any]:
        """Return the value of each port that is no model call. ``stored``: the texts that a search
        may find."""
        match primitive.op:
            case Op.CONDITION:
                return {"out": self.searches}
            case Op.AGGREGATE if primitive.outputs["out"] in LISTS:
                return {"out": [one for given in inputs.values() for one in given]}
            case Op.SEARCHING:
                return {"out": _found(primitive, stored)}
            case Op.RERANKING:
                return {"out": self._scores(inputs["texts"])}
            case Op.CHOOSING:
                return {"out": self._ranked(inputs["texts"], primitive.config["top_n"])}
        worked_on = [one.tokens if isinstance(one, ModelCall) else one for one in inputs.values()]
        name = f"{primitive.id}:{crc32(repr(worked_on).encode())}"
        return {
            port: [f"{name}/{n}" for n in range(_num_of(primitive))] if kind in LISTS else name
            for port, kind in primitive.outputs.items()
            if kind is not ValueType.STATE
        }

    def _ranked(self, texts: Sequence[str], top_n: int) -> list[str]:
        """Return the best ``top_n`` of ``texts``. Further texts behind them do not change the
        order."""
        drawn, once = Random(self.seed), list(dict.fromkeys(texts))
        num_same = 0
        while num_same < top_n and drawn.random() < self.speculation.same_order:
            num_same += 1
        return [*once[:num_same], *once[top_n:], *once[num_same:top_n]][:top_n]

    def _scores(self, texts: Sequence[str]) -> list[float]:
        """Return a score for each text. The best are those of ``_ranked``, except for one that no
        search finds, if it is drawn."""
        drawn, best = Random(-1 - self.seed), self._ranked(texts, TOP_N)
        num_found = 0
        while num_found < TOP_N and drawn.random() < self.speculation.found:
            num_found += 1
        if num_found < TOP_N:
            best.insert(num_found, texts[-1])
        places = {text: place for place, text in reversed(list(enumerate(best)))}
        return [-float(places.get(text, len(best))) for text in texts]


def _found(primitive: Primitive, stored: Sequence[str]) -> list[str]:
    """Return what a search finds; searches of one query find different texts while there are
    enough."""
    num = (primitive.size or 1) * (primitive.fan or 1)
    first = primitive.first * (primitive.fan or 1)
    return [stored[(first + place) % len(stored)] for place in range(num)]


def _num_of(primitive: Primitive) -> int:
    if primitive.op is Op.CHUNK:
        return MOST_CHUNKS
    if primitive.op is Op.SEARCH:
        return int(primitive.config["top_k"])
    fan = 1 if primitive.fan is None else primitive.fan
    return (primitive.size or 1) * (fan if primitive.op is not Op.PARTIAL_DECODING else 1)
