"""Suppositions about a primitive's outputs before it has ended.

Must not know what runs on a supposition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.programs.workflow.graphs.control_flow import chosen
from quire.programs.workflow.graphs.primitives import Guess, Primitive
from quire.programs.workflow.speculation.early import num_equal
from quire.programs.workflow.speculation.experience import Experience


def branches_of(primitive: Primitive, experience: Experience) -> tuple[bool, ...]:
    """Return the values of a condition that are worth supposing, the likelier first."""
    likely: bool | None = primitive.config.get("likely")
    return experience.branches(primitive.node) if likely is None else (likely,)


def as_found(primitive: Primitive, texts: Sequence[str]) -> list[str]:
    """Return what a ranking gives if its texts were found in the order of their relevance."""
    top_n: int = primitive.config["top_n"]
    return chosen(texts, [0.0] * len(texts), top_n)


def share_right(
    primitive: Primitive, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> float | None:
    """Return how much of the supposition was right, by the outputs; of a condition, whether it is
    true. None: nothing could be supposed."""
    if primitive.guess is Guess.BRANCH:
        return float(bool(outputs["out"]))
    ranked: list[str] = outputs["out"] if primitive.guess is Guess.FIRST else []
    if not ranked:
        return None
    return num_equal(as_found(primitive, inputs["texts"]), ranked) / len(ranked)
