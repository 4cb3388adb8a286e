"""Limits of the grammar compiler, said in our words."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar import GrammarCompiler, Vocabulary
from quire.node.grammars.words import in_our_words


def follow(grammar: GrammarSpec) -> None:
    """Compile it, and begin a text of the letter a."""
    matcher = GrammarCompiler(Vocabulary()).compile(grammar)
    for _ in range(9):
        matcher.mask()
        matcher.consume(ord("a"))


@pytest.mark.parametrize(
    ("kind", "source", "part"),
    [
        (
            "json_schema",
            json.dumps({"items": {"enum": [f"x{i}" for i in range(20_000)]}}),
            "compiling this takes more work than is allowed: shorten its lists",
        ),
        ("regex", "(a|aa)+" * 2000, "following the patterns takes more work than is allowed"),
    ],
)
def test_what_the_compiler_has_no_room_for_is_said_in_our_words(
    kind: Literal["json_schema", "regex"], source: str, part: str
) -> None:
    """Without the checker's limits of time, which these may reach before the compiler's."""
    grammar = GrammarSpec(kind, source)
    with pytest.raises(GrammarError) as caught:
        follow(grammar)
    assert part in in_our_words(caught.value, grammar).message


@pytest.mark.parametrize(
    ("grammar", "theirs", "ours"),
    [
        (
            GrammarSpec("json_schema", '{"items": {"allOf": [{"pattern": "a"}]}}'),
            "the JSON schema cannot be compiled: Unable to determine if regex is empty:  (And (And",
            "#/items: whether any text fits all these patterns takes too much work",
        ),
        (
            GrammarSpec("lark", 'start: s\ns: s s | s s s | "a"'),
            "the constraint cannot be followed: Parser Error: Current row has 2001 items; max is "
            "2000; consider making your grammar left-recursive if it's right-recursive",
            "can be read in 2001 ways, and at most 2000 are followed",
        ),
    ],
)
def test_so_is_what_takes_long_to_find_out(grammar: GrammarSpec, theirs: str, ours: str) -> None:
    assert ours in in_our_words(GrammarError(theirs), grammar).message
