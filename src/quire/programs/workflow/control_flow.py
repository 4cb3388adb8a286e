"""Primitives that no engine carries out: what was split is gathered, and conditions are decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.programs.workflow.primitives import Op, Primitive
from quire.programs.workflow.values import ValueType


def decided(primitive: Primitive, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The outputs of an Aggregate or a condition; None for every other primitive."""
    if primitive.op is Op.AGGREGATE:
        return {"out": _gathered(primitive, inputs)}
    if primitive.op is Op.CONDITION:
        return {"out": _plain(inputs["text"]) == _plain(primitive.config["equals"])}
    return None


def _gathered(primitive: Primitive, inputs: Mapping[str, Any]) -> Any:
    if primitive.outputs["out"] is ValueType.DONE:
        return True
    return [element for values in inputs.values() for element in values]


def _plain(text: str) -> str:
    return text.strip().rstrip(".").casefold()
