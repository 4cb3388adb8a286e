"""Trait Grammar: constraints on the output of a decode. Compiled and enforced beside the engine.

These functions build the constraint as data; a source that cannot be compiled fails the decode with
``GrammarError``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.core.traits import Trait
from quire.programs.api.queued import TraitFunctions

MAX_SOURCE_BYTES = 1 << 18


def json_schema(schema: Mapping[str, Any] | str) -> GrammarSpec:
    """Constrain the output to JSON that conforms to ``schema`` (a schema, or its JSON text)."""
    if not isinstance(schema, str):
        try:
            schema = json.dumps(schema)
        except (TypeError, ValueError) as exc:
            raise GrammarError(f"the schema is not JSON: {exc}") from exc
    return _bounded(GrammarSpec("json_schema", schema))


def regex(pattern: str) -> GrammarSpec:
    """Let the whole output match ``pattern`` (Rust regex syntax, without look-around)."""
    return _bounded(GrammarSpec("regex", pattern))


def lark(source: str) -> GrammarSpec:
    """Derive the output from the rule ``start`` of a Lark grammar in llguidance's dialect."""
    return _bounded(GrammarSpec("lark", source))


def choice(options: Sequence[str]) -> GrammarSpec:
    """Constrain the output to exactly one of ``options``."""
    if not options or any(not option for option in options):
        raise GrammarError("choice needs at least one option, none of them empty")
    return _bounded(GrammarSpec("regex", "|".join(re.escape(option) for option in options)))


def _bounded(grammar: GrammarSpec) -> GrammarSpec:
    num_bytes = len(grammar.source.encode("utf-8", "surrogatepass"))
    if not num_bytes or num_bytes > MAX_SOURCE_BYTES:
        raise GrammarError(
            f"a {grammar.kind} source of {num_bytes} bytes: between 1 and {MAX_SOURCE_BYTES} "
            "are allowed"
        )
    return grammar


class GrammarFunctions(TraitFunctions):
    """The same functions on the ``Api`` object."""

    trait = Trait.GRAMMAR

    def json_schema(self, schema: Mapping[str, Any] | str) -> GrammarSpec:
        """Constrain the output to JSON that conforms to ``schema`` (a schema, or its JSON text)."""
        return json_schema(schema)

    def regex(self, pattern: str) -> GrammarSpec:
        """Let the whole output match ``pattern`` (Rust regex syntax, without look-around)."""
        return regex(pattern)

    def lark(self, source: str) -> GrammarSpec:
        """Derive the output from the rule ``start`` of a Lark grammar in llguidance's dialect."""
        return lark(source)

    def choice(self, options: Sequence[str]) -> GrammarSpec:
        """Constrain the output to exactly one of ``options``."""
        return choice(options)
