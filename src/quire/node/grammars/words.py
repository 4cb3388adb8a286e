"""Explains a refused grammar to its author: what to change, and where.

Owns the translation of the compiler's messages about JSON schemas. A message without an entry in
the table is passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar_limits import MAX_SOURCE_BYTES
from quire.node.grammars.endless_schema import endless_reference, schemas_of

_MAX_PLACES = 3
"""The most places that a message names."""

_MEANINGS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("NoExtensionBias", (), "no text can match the grammar: correct it"),
    (
        "oneOf constraints are not supported",
        ("oneOf",),
        "oneOf: can only be enforced if the alternatives differ in type or in a required property "
        "with a constant text: write anyOf",
    ),
    (
        "min/maxProperties only supported when",
        ("minProperties", "maxProperties"),
        "answers can only be held to numbers of properties where all that are listed in "
        "properties are required, or the number is 0 or 1: list them in required",
    ),
    (
        r"patternProperty regexes (?P<what>.*) are not disjoint",
        ("patternProperties",),
        "patternProperties: a name can match both {what}: write patterns of which a name matches "
        "one",
    ),
    (
        r"Unsatisfiable schema: (?P<what>[^\n]*?)(?:; correct it)?$",
        (),
        "no value fits the schema: {what}: correct it",
    ),
    (
        r"Resource '(?:json-schema:///)?(?P<what>[^']*)' is not present",
        ("$ref", "$schema"),
        "{what} is not part of the schema, and nothing is fetched: move it under $defs and refer "
        "to it as #/$defs/NAME",
    ),
    (
        "Pointer '(?P<what>[^']*)' does not exist",
        ("$ref",),
        "there is nothing at #{what}: correct the reference",
    ),
    (
        "look-?around",
        ("pattern", "patternProperties"),
        "look-around and word boundaries in patterns are not supported: write the pattern without",
    ),
    (
        r"regex parse error[\s\S]*error: (?P<what>[^;\n]*)",
        ("pattern", "patternProperties"),
        "a pattern cannot be read: {what}: correct it",
    ),
    (
        "'multipleOf' has too many digits",
        ("multipleOf",),
        "multipleOf: at most nine digits can be kept: write a rounder number",
    ),
    (
        "initial lexer configuration",
        (),
        "compiling this takes more work than is allowed: shorten its lists, patterns and ranges of "
        "numbers, or split it",
    ),
    (
        "Unable to determine if regex is empty",
        ("allOf",),
        "whether any text fits all these patterns takes too much work to find out: write one "
        "pattern",
    ),
    (
        "too many expressions constructed|lexer fuel",
        (),
        "following the patterns takes more work than is allowed: write shorter ones, with fewer "
        "repetitions inside repetitions",
    ),
    (
        r"Current row has (?P<what>\d+) items; max is (?P<limit>\d+)",
        (),
        "the same text can be read in {what} ways, and at most {limit} are followed: write rules "
        "of which one fits, and repetitions with the rule itself in front (a: a b | b)",
    ),
    (
        "Anchor '(?P<what>[^']*)' does not exist",
        ("$ref",),
        "no $anchor is named {what}: correct the reference",
    ),
)
"""The compiler's message, the keywords that it concerns, and our message. An entry with keywords
applies to grammars that contain them."""


def in_our_words(error: GrammarError, grammar: GrammarSpec) -> GrammarError:
    """``error`` with a message that tells the author of ``grammar`` what to change."""
    if len(grammar.source) > MAX_SOURCE_BYTES:
        return error  # it says so: nothing else was looked at
    if (reference := endless_reference(grammar)) is not None:
        return GrammarError(
            f"the schema refers to itself without end ({reference}): let a value end somewhere"
        )
    for pattern, keywords, ours in _MEANINGS:
        found = re.search(pattern, error.message)
        if found is None:
            continue
        places = _named(grammar, keywords)
        if places or not keywords:
            return GrammarError(places + ours.format(**found.groupdict()))
    return error


def _named(grammar: GrammarSpec, keywords: tuple[str, ...]) -> str:
    """The places of ``keywords``. One of them is meant, but the compiler does not say which."""
    places = [
        place for schema in schemas_of(grammar) for place in _places(schema, frozenset(keywords))
    ]
    if not places:
        return ""
    named = ", ".join(place[:200] for place in places[:_MAX_PLACES])
    return f"{named}, ...: " if len(places) > _MAX_PLACES else f"{named}: "


def _places(schema: Any, keywords: frozenset[str]) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, dict):
            if not keywords.isdisjoint(part):
                yield place
            inner = [(_step(name), value) for name, value in part.items()]
        elif isinstance(part, list):
            inner = [(str(index), value) for index, value in enumerate(part)]
        else:
            continue
        waiting += [(f"{place}/{name}"[:400], value) for name, value in reversed(inner)]


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
