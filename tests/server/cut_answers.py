"""Texts of answers and places to cut them, for formatters whose streams add up to the whole."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

_PARTS = st.sampled_from(
    [
        "text ",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {"a": [1, "}"]}}',
        '{"name": "g"}',
        "{broken",
        "\n",
        "ü\N{GRINNING FACE}",
    ]
)
TEXTS = st.lists(_PARTS, max_size=8).map("".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)


def cut(text: str, cuts: list[int]) -> list[str]:
    """``text`` in pieces, at least one."""
    places = sorted({0, *(place for place in cuts if place < len(text)), len(text)})
    return [text[start:end] for start, end in pairwise(places)] or [""]
