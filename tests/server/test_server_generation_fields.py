"""Bounds of fields that all routes of generation share."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from quire.server.schemas.generation import MAX_STOPS, BadWord, Breaker, ChoiceText, StopString
from quire.server.schemas.generation import Stop as StopField


@pytest.mark.parametrize(
    ("kind", "longest"),
    [(StopString, 1024), (ChoiceText, 1024), (BadWord, 256), (Breaker, 64)],
    ids=["stop", "choice", "bad word", "breaker"],
)
def test_texts_have_one_character_at_least_and_a_longest_length(kind: object, longest: int) -> None:
    field = TypeAdapter[str](kind)
    for length in (1, longest):
        assert field.validate_python("x" * length) == "x" * length
    for length in (0, longest + 1):
        with pytest.raises(ValidationError):
            field.validate_python("x" * length)


def test_stops_are_bounded_in_number() -> None:
    field = TypeAdapter[object](StopField)
    assert field.validate_python(["x"] * MAX_STOPS) == ["x"] * MAX_STOPS
    with pytest.raises(ValidationError):
        field.validate_python(["x"] * (MAX_STOPS + 1))
