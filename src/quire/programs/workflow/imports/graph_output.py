"""The output of a ``StateGraph`` as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.imports.graph_shape import GraphShape


def output_of(shape: GraphShape, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the graph's output schema has of ``state``; messages and models of pydantic
    become objects.

    Raises:
        InvalidArgument: a value that JSON does not have.
    """
    shown = shape.known(shape.output_schema)
    return {name: _plain(name, one) for name, one in state.items() if name in shown}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(name, one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(name, one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(
            f"the state's {name!r} holds {value}, which JSON has no number for: set it to None",
            param=name,
        )
    if value is None or isinstance(value, str | bool | int | float):
        return value
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise InvalidArgument(
            f"the state's {name!r} holds a {type(value).__name__}, which a result cannot hold: "
            "leave it out of the graph's output schema",
            param=name,
        )
    return _plain(name, dump(mode="json"))
