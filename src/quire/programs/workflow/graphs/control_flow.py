"""Primitives that no engine runs: they gather split values, choose the best texts, and decide
conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.values import ValueType, joined


def decided(primitive: Primitive, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The outputs of an Aggregate, a choice or a condition; None for every other primitive."""
    if primitive.op is Op.AGGREGATE:
        return {"out": _gathered(primitive, inputs)}
    if primitive.op is Op.CHOOSING:
        top_n: int = primitive.config["top_n"]
        return {"out": chosen(inputs["texts"], inputs["scores"], top_n)}
    if primitive.op is Op.CONDITION:
        return {"out": _plain(inputs["text"]) == _plain(primitive.config["equals"])}
    return None


def chosen(texts: Sequence[str], scores: Sequence[float], top_n: int) -> list[str]:
    """The ``top_n`` texts with the highest scores, best first; of equals the first. A text that
    occurs twice is repeated only if there are too few others."""
    first: dict[str, float] = {}
    repeated: list[str] = []
    for text, score in zip(texts, scores, strict=True):
        if text in first:
            repeated.append(text)
        else:
            first[text] = score
    ranked = sorted(first, key=lambda text: -first[text])
    return [*ranked, *repeated][:top_n]


def _gathered(primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
    if primitive.outputs["out"] is ValueType.DONE:
        return True
    return joined(list(inputs.values()))


def _plain(text: str) -> str:
    return text.strip().rstrip(".").casefold()
