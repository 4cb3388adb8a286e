"""Grammars compile in a process of their own; a bad one ends nothing but its request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.server.endless_schema import endless_reference
from quire.server.grammar_check import MAX_SOURCE_BYTES, GrammarChecker

GOOD = GrammarSpec("regex", "[a-z]+")
EXPLODING = GrammarSpec(
    "json_schema", '{"type": "integer", "multipleOf": 62615533, "minimum": -1000000000000000000}'
)
"""Compiles at once; its automaton then needs gigabytes."""


@pytest_asyncio.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    checker = GrammarChecker(timeout_s=60, max_memory_bytes=112 << 20, num_workers=1)
    yield checker
    await checker.close()


@pytest.mark.parametrize(
    "grammar",
    [
        GOOD,
        GrammarSpec("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}}'),
        GrammarSpec("lark", 'start: "a" | "b"'),
    ],
)
async def test_good_grammars_pass(checker: GrammarChecker, grammar: GrammarSpec) -> None:
    await checker.check(grammar, param="p")


@pytest.mark.parametrize(
    ("grammar", "part"),
    [
        (GrammarSpec("regex", "(a"), "unclosed group"),
        (GrammarSpec("regex", "(?=a)b"), "look-around"),
        (GrammarSpec("json_schema", '{"type": "foo"}'), "foo"),
        (GrammarSpec("json_schema", '{"$ref": "http://example.com/x"}'), "example.com"),
        (GrammarSpec("lark", "start: nowhere"), "nowhere"),
        (GrammarSpec("regex", "a" * (MAX_SOURCE_BYTES + 1)), "longer than"),
    ],
)
async def test_bad_grammars_say_why(
    checker: GrammarChecker, grammar: GrammarSpec, part: str
) -> None:
    with pytest.raises(GrammarError, match="response_format: the ") as caught:
        await checker.check(grammar, param="response_format")
    assert part in caught.value.message
    assert "<state>" not in caught.value.message
    await checker.check(GOOD, param="p")


@pytest.mark.parametrize(
    ("grammar", "reference"),
    [
        (GrammarSpec("json_schema", '{"$ref": "#"}'), "#"),
        (
            GrammarSpec(
                "json_schema",
                '{"$ref": "#/$defs/a", '
                '"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}',
            ),
            "#/$defs/a",
        ),
        (
            GrammarSpec(
                "json_schema",
                '{"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#"}}, '
                '"x-guidance": {"whitespace_flexible": false}}',
            ),
            "#",
        ),
        (
            GrammarSpec("lark", 'start: call\ncall: %json {"allOf": [{"$ref": "#"}]}'),
            "#",
        ),
    ],
)
async def test_a_schema_without_end_is_named(
    checker: GrammarChecker, grammar: GrammarSpec, reference: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        await checker.check(grammar, param="p")
    assert caught.value.message.endswith(f"refers to itself without end ({reference})")


def test_a_long_chain_of_references_is_followed() -> None:
    definitions = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5000)}
    chain: dict[str, Any] = {"$ref": "#/$defs/0", "$defs": {**definitions, "5000": {"type": "foo"}}}
    assert endless_reference(GrammarSpec("json_schema", json.dumps(chain))) is None
    chain["$defs"]["5000"] = {"$ref": "#"}
    assert endless_reference(GrammarSpec("json_schema", json.dumps(chain))) == "#"


async def test_a_schema_that_may_end_passes(checker: GrammarChecker) -> None:
    tree = '{"type": "object", "properties": {"x": {"$ref": "#"}}, "additionalProperties": false}'
    await checker.check(GrammarSpec("json_schema", tree), param="p")


async def test_an_exploding_grammar_kills_only_its_worker(checker: GrammarChecker) -> None:
    with pytest.raises(GrammarError, match="more than 112 MiB of memory"):
        await checker.check(EXPLODING, param="p")
    await checker.check(GOOD, param="p")


async def test_a_slow_grammar_is_ended_by_time() -> None:
    checker = GrammarChecker(timeout_s=0.0, num_workers=1)
    with pytest.raises(GrammarError, match="longer than 0 s"):
        await checker.check(GOOD, param="p")
    await checker.close()


async def test_close_is_idempotent(checker: GrammarChecker) -> None:
    await checker.check(GOOD, param="p")
    await checker.close()
    await checker.close()


async def test_a_worker_that_ended_while_it_was_idle_is_replaced(checker: GrammarChecker) -> None:
    """The grammar that comes next is not told that it took the memory."""
    await checker.check(GOOD, param="p")
    (idle,) = checker._idle
    idle.kill()
    await checker.check(GrammarSpec("regex", "[0-9]+"), param="p")
    (fresh,) = checker._idle
    assert fresh is not idle
