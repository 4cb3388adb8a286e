"""Completing a text, at both levels and several ways at once."""

from __future__ import annotations

import pytest
from library_run import run

from quire.core.errors import InvalidArgument


async def test_text_completion_streams() -> None:
    result, messages, _ = await run("text_completion", "Hello,", "5", answer=lambda _: " world!")
    assert result == " worl"
    assert "".join(messages) == " worl"


async def test_both_levels_agree() -> None:
    low, _, _ = await run("low_level_completion", "Hello,", "7", answer=lambda _: " world, hello")
    assert (low["text"], low["num_distributions"]) == (" world,", 7)


async def test_parallel_generation_joins_its_branches() -> None:
    result, _, _ = await run(
        "parallel_generation",
        "Two colors:",
        " 1.",
        " 2.",
        answer=lambda prompt: " red\n" if prompt.endswith("1.") else " blue\n",
    )
    assert result["texts"] == [" red", " blue"]
    assert result["joined"] == "Two colors: 1. red\n 2. blue\n"


async def test_a_bad_argument_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"argument max_tokens .* is 'many': give an integer"):
        await run("text_completion", "Hello", "many")
