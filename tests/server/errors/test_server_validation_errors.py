"""What is said of a body's further problems."""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError

from quire.server.errors.validation_errors import problem_of


def problem(kind: str, *where: str | int) -> dict[str, Any]:
    return {"type": kind, "loc": ("body", *where), "msg": "it is wrong", "input": None}


def said_of(body: dict[str, Any], *problems: dict[str, Any]) -> str:
    return problem_of(RequestValidationError(problems, body=body)).message


def test_what_follows_from_a_wrong_type_is_no_further_problem() -> None:
    said = said_of(
        {"tools": [{"type": "web"}], "n": 0},
        problem("literal_error", "tools", 0, "type"),
        problem("missing", "tools", 0, "function"),
        problem("value_error", "n"),
    )
    assert said == "tools[0].type: it is wrong (and 1 more problem: n)"


def test_a_field_with_several_problems_is_named_once() -> None:
    said = said_of(
        {"temperature": 9, "stop": 5, "n": 0},
        problem("value_error", "temperature"),
        problem("value_error", "stop", "str"),
        problem("value_error", "stop", "list[str]"),
        problem("value_error", "n"),
    )
    assert said == "temperature: it is wrong (and 3 more problems: stop, n)"
