"""Reports a body or query that does not fit its schema: the field and the problem, in clients'
words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError

from quire.server.errors.unknown_fields import instead_of
from quire.server.schemas.base import FieldError

_OBJECT_WANTED = frozenset({"model_type", "model_attributes_type", "dict_type"})
"""Pydantic's problems with a value that is not a JSON object; their messages are about Python."""

_COMPARED = ("greater_than", "less_than", "int_from_float")
_OF_A_KIND = "_type"
"""Pydantic's problems whose message does not name the value."""

_MAX_NAMED = 3
"""How many fields with further problems a message names."""


class FieldProblem(NamedTuple):
    """``param``: the field as clients write it, ``None`` if it is the body as a whole."""

    message: str
    code: str
    param: str | None


def location_of(problem: Mapping[str, Any], body: Any) -> str | None:
    """Return the path of a validation error as clients write it: ``messages[0].content``.

    Pydantic's path also contains the alternatives of unions, which are not fields: only parts that
    ``body`` has are kept, and at the end the missing one.
    """
    path, value = "", body
    where, *parts = problem["loc"]
    for depth, part in enumerate(parts, 1):
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
            continue
        is_missing = depth == len(parts) and problem["type"] == "missing"
        if where == "body" and not (isinstance(value, dict) and (part in value or is_missing)):
            continue
        path += f".{part}" if path else part
        value = value.get(part) if isinstance(value, dict) else None
    return path[:200] or None


def problem_of(
    error: RequestValidationError | WebSocketRequestValidationError, fields: Sequence[str] = ()
) -> FieldProblem:
    """Return the first problem in full, and the places of further ones.

    ``fields``: those that the body may have. Numbers are repeated in the message; of other values
    only the kind is named, because texts belong to their sender.
    """
    problems = error.errors()
    first = problems[0]
    body = error.body if isinstance(error, RequestValidationError) else None
    param = location_of(first, body)
    message = str(first["msg"]).removeprefix("Value error, ")
    if tuple(first["loc"]) == ("body",) and first["type"] != "value_error":
        message = "the body must be a JSON object, sent with content-type: application/json"
    elif first["type"] in _OBJECT_WANTED:
        message = "must be an object"
    elif first["type"] == "extra_forbidden":
        message = instead_of(param or "", fields)
    elif first["type"].startswith(_COMPARED) or first["type"].endswith(_OF_A_KIND):
        message += f", not {_given_in(first)}"
    elif first["type"].endswith("_parsing"):  # of a query or path, whose values are all texts
        message = message.partition(", unable to ")[0]
    elif first["type"] == "union_tag_invalid":
        message = f"{_tag_of(first)} is '{first['ctx']['tag']}': it must be one of "
        message += first["ctx"]["expected_tags"]
    elif first["type"] == "union_tag_not_found":
        message = f"{_tag_of(first)}: Field required"
    where = f"{param}: " if param else ""
    more = _more(_others(problems), body)
    return FieldProblem(f"{where}{message}{more}", _code_of(first["type"]), param or _blamed(first))


def _blamed(problem: Mapping[str, Any]) -> str | None:
    """Return the field that a check of the whole body names."""
    error = problem.get("ctx", {}).get("error")
    return error.param if isinstance(error, FieldError) else None


def _tag_of(problem: Mapping[str, Any]) -> str:
    """Return the field by which pydantic tells the alternatives of a union apart."""
    return str(problem["ctx"]["discriminator"]).strip("'")


def _others(problems: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the problems that do not follow from the first: the type of an object decides which
    fields it has."""
    *around, last = problems[0]["loc"]
    if last != "type":
        return problems[1:]
    return [one for one in problems[1:] if list(one["loc"])[: len(around)] != around]


def _more(problems: Sequence[Mapping[str, Any]], body: Any) -> str:
    """Return how many further ``problems`` there are and the fields of the first few."""
    if not problems:
        return ""
    places = dict.fromkeys(place for one in problems if (place := location_of(one, body)))
    named = [*places][:_MAX_NAMED]
    where = f": {', '.join(named)}{', ...' * (len(places) > len(named))}" if named else ""
    return f" (and {len(problems)} more problem{'s' * (len(problems) > 1)}{where})"


def _given_in(problem: Mapping[str, Any]) -> str:
    """Return the value of ``problem`` for a message. A number of a query or path is a text here,
    and is repeated like other numbers."""
    value = problem.get("input")
    is_compared = problem["type"].startswith(_COMPARED)
    return value if is_compared and isinstance(value, str) else _given(value)


def _given(value: Any) -> str:
    """Return ``value`` for a message, in JSON's terms."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null" if value is None else "that")


def _code_of(kind: str) -> str:
    return "unknown_parameter" if kind == "extra_forbidden" else "invalid_argument"
