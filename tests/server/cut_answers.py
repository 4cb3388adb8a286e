"""Texts of answers and places to cut them, for formatters whose streams add up to the whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import strategies as st

from quire.server.answers.delivery import Formatter
from quire.server.answers.generation import PromptChunk

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


def feed_in_parts(
    formatter: Formatter, chunk: Callable[..., PromptChunk], text: str, cuts: list[int]
) -> list[bytes]:
    """Feed ``text`` in pieces, of which the last one ends the answer; returns their events."""
    pieces = cut(text, cuts)
    events: list[bytes] = []
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        events += formatter.feed(chunk(piece, finish_reason="stop" if is_last else None))
    return events
