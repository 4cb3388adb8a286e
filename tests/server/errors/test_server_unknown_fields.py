"""What is said of a field that a body may not have."""

from __future__ import annotations

import pytest

from quire.server.errors.unknown_fields import instead_of

FEW = ["model", "prompt", "max_tokens"]


@pytest.mark.parametrize(
    ("param", "fields", "said"),
    [
        ("promt", FEW, "no such parameter; did you mean prompt?"),
        ("banana", FEW, "no such parameter; there are model, prompt, max_tokens"),
        ("banana", [], "no such parameter; check its spelling or leave it out"),
        ("model.banana", FEW, "no such parameter; check its spelling or leave it out"),
        (
            "banana",
            [f"field{number}" for number in range(100)],
            "no such parameter; check its spelling or leave it out",
        ),
    ],
)
def test_the_nearest_field_is_named_or_all_if_they_are_few(
    param: str, fields: list[str], said: str
) -> None:
    assert instead_of(param, fields) == said
