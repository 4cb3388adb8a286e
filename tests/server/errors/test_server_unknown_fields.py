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


RESPONSES = ["model", "input", "instructions", "max_output_tokens", "text", "reasoning"]
CHAT = ["model", "messages", "max_tokens", "max_completion_tokens", "stop", "response_format"]


@pytest.mark.parametrize(
    ("param", "fields", "said"),
    [
        ("prompt", RESPONSES, "stores no prompts: send the text in instructions and input"),
        ("context_management", RESPONSES, "compacts no conversations"),
        ("messages", RESPONSES, "no such parameter; write input"),
        ("max_tokens", RESPONSES, "no such parameter; write max_output_tokens"),
        ("max_completion_tokens", RESPONSES, "no such parameter; write max_output_tokens"),
        ("response_format", RESPONSES, "no such parameter; write text"),
        ("input", CHAT, "no such parameter; write messages"),
        ("prompt", CHAT, "no such parameter; write messages"),
        ("stop_sequences", CHAT, "no such parameter; write stop"),
        ("max_completion_tokens", FEW, "no such parameter; write max_tokens"),
    ],
)
def test_a_field_of_another_route_is_told_what_it_is_here(
    param: str, fields: list[str], said: str
) -> None:
    assert said in instead_of(param, fields)
