"""What runs ahead in a paced query, and the values by which its runs are told apart.

Texts are replaced by names: a value is named after its primitive and what this has worked on, so
that what follows from a wrong supposition has another name. How a ranking turns out is drawn for
each query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from zlib import crc32

from benchmarks.ayo.asking import ModelCall
from quire.programs.workflow.primitives import Op, Primitive
from quire.programs.workflow.speculation import Experience
from quire.programs.workflow.speculation.guesses import as_found
from quire.programs.workflow.values import LISTS, ValueType

SAME_ORDER = 0.5
"""That the next best text of a ranking is the next one that the search has found, as long as all
before it were."""

MOST_CHUNKS = 256
"""Of a document; who takes chunks takes its own."""


@dataclass(slots=True)
class Counts:
    """Of all queries of one application: runs ahead, and tokens of answers that were dropped."""

    begun: int = 0
    kept: int = 0
    dropped: int = 0
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Speculation:
    """Of one application's queries. ``same_order``: see ``SAME_ORDER``."""

    experience: Experience
    counts: Counts
    same_order: float = SAME_ORDER


def outputs_of(
    primitive: Primitive, inputs: Mapping[str, Any], searches: bool, same_order: float, seed: int
) -> dict[str, Any]:
    """Of every port but those that are calls of models."""
    if primitive.op is Op.CONDITION:
        return {"out": searches}
    if primitive.op is Op.AGGREGATE and primitive.outputs["out"] in LISTS:
        return {"out": [one for given in inputs.values() for one in given]}
    if primitive.op is Op.CHOOSING:
        return {"out": _ranked(primitive, inputs["texts"], Random(seed), same_order)}
    worked_on = [one.tokens if isinstance(one, ModelCall) else one for one in inputs.values()]
    name = f"{primitive.id}:{crc32(repr(worked_on).encode())}"
    return {
        port: [f"{name}/{n}" for n in range(_num_of(primitive))] if kind in LISTS else name
        for port, kind in primitive.outputs.items()
        if kind is not ValueType.STATE
    }


def _ranked(primitive: Primitive, texts: list[str], drawn: Random, same_order: float) -> list[str]:
    ranked = as_found(primitive, texts)
    num_same = 0
    while num_same < len(ranked) and drawn.random() < same_order:
        num_same += 1
    others = [text for text in texts if text not in ranked]
    return [*ranked[:num_same], *others, *ranked[num_same:]][: len(ranked)]


def _num_of(primitive: Primitive) -> int:
    if primitive.op is Op.CHUNK:
        return MOST_CHUNKS
    if primitive.op is Op.SEARCH:
        return int(primitive.config["top_k"])
    fan = 1 if primitive.fan is None else primitive.fan
    return (primitive.size or 1) * (fan if primitive.op is not Op.PARTIAL_DECODING else 1)
