"""Grammars are tried before control hears of them: what is refused, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from quire.core.commands import Command, Decode, Synchronize
from quire.core.decoding import GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import (
    CapacityError,
    Draining,
    EngineFault,
    GrammarError,
    QuireError,
    QuotaExceeded,
)
from quire.core.ids import CommandId, TenantId
from quire.engine.sampling.grammar_limits import MAX_SOURCE_BYTES
from quire.node.grammars import endless_schema
from quire.node.grammars.checker import MAX_WAITING, NUM_WORKERS, GrammarChecker
from quire.node.grammars.endless_schema import endless_reference
from quire.node.grammars.turns import TenantTurns
from quire.node.grammars.words import in_our_words

GOOD = GrammarSpec("regex", "[a-z]+")
ONE, OTHER = TenantId("one"), TenantId("other")
LIMITS = "more than 0.25 s of processor time to compile, 50 ms for one token, or 256 MiB"
TOO_MUCH = [
    GrammarSpec(
        "json_schema",
        json.dumps(
            {
                "type": "array",
                "prefixItems": [{"type": "integer", "multipleOf": 1009 + i} for i in range(500)],
            }
        ),
    ),
    GrammarSpec(
        "json_schema",
        json.dumps({"allOf": [{"type": "string", "pattern": f"x{i}"} for i in range(100)]}),
    ),
    GrammarSpec(
        "lark",
        "\n".join(
            [
                "start: r0",
                *(
                    f"r{i}: " + " | ".join(f"r{j}" for j in range(i + 1, min(i + 40, 398)))
                    for i in range(397)
                ),
                'r397: "a"',
            ]
        ),
    ),
]
"""Would take from ten seconds to minutes, and up to gigabytes."""


@pytest_asyncio.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    await asyncio.to_thread(checker.close)


@pytest.mark.parametrize(
    "grammar",
    [
        GOOD,
        GrammarSpec("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}}'),
        GrammarSpec("lark", 'start: "a" | "b"'),
    ],
)
async def test_good_grammars_pass(checker: GrammarChecker, grammar: GrammarSpec) -> None:
    await checker.check(ONE, grammar)


@pytest.mark.parametrize(
    ("grammar", "part"),
    [
        (GrammarSpec("regex", "(a"), "unclosed group"),
        (GrammarSpec("regex", "(?=a)b"), "look-around"),
        (GrammarSpec("json_schema", '{"type": "foo"}'), "foo"),
        (
            GrammarSpec("json_schema", '{"$ref": "http://example.com/x"}'),
            "#: http://example.com/x is not part of the schema, and nothing is fetched",
        ),
        (
            GrammarSpec("json_schema", '{"items": {"oneOf": [{"const": 1}, {"const": 2}]}}'),
            "#/items: oneOf: can only be enforced if the alternatives differ",
        ),
        (
            GrammarSpec("json_schema", '{"items": {"$ref": "#/$defs/a"}}'),
            "#/items: there is nothing at #/$defs/a: correct the reference",
        ),
        (
            GrammarSpec("json_schema", '{"type": "string", "pattern": "(a"}'),
            "#: a pattern cannot be read: unclosed group: correct it",
        ),
        (
            GrammarSpec("json_schema", '{"type": "string", "pattern": "^(?!a)"}'),
            "#: look-around and word boundaries in patterns are not supported",
        ),
        (
            GrammarSpec("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}'),
            "no value fits the schema: minLength (5) is greater than maxLength (2): correct it",
        ),
        (
            GrammarSpec("lark", 'start: %json {"items": {"uniqueItems": true}}'),
            "#/items: uniqueItems: answers cannot be held to it",
        ),
        (GrammarSpec("lark", "start: nowhere"), "nowhere"),
        (GrammarSpec("regex", "a" * (MAX_SOURCE_BYTES + 1)), "at most"),
    ],
)
async def test_bad_grammars_say_why(
    checker: GrammarChecker, grammar: GrammarSpec, part: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        await checker.check(ONE, grammar)
    assert part in caught.value.message
    assert "<state>" not in caught.value.message
    await checker.check(ONE, GOOD)


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
        await checker.check(ONE, grammar)
    assert f"refers to itself without end ({reference})" in caught.value.message


def test_a_long_chain_of_references_is_followed() -> None:
    definitions = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5000)}
    chain: dict[str, Any] = {"$ref": "#/$defs/0", "$defs": {**definitions, "5000": {"type": "foo"}}}
    assert endless_reference(GrammarSpec("json_schema", json.dumps(chain))) is None
    chain["$defs"]["5000"] = {"$ref": "#"}
    assert endless_reference(GrammarSpec("json_schema", json.dumps(chain))) == "#"


async def test_a_schema_that_may_end_passes(checker: GrammarChecker) -> None:
    tree = '{"type": "object", "properties": {"x": {"$ref": "#"}}, "additionalProperties": false}'
    await checker.check(ONE, GrammarSpec("json_schema", tree))


@pytest.mark.parametrize("grammar", TOO_MUCH, ids=["prefix items", "patterns", "alternatives"])
async def test_what_takes_too_much_is_refused_with_the_limits(
    grammar: GrammarSpec, checker: GrammarChecker
) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match=LIMITS):
            await checker.check(ONE, grammar)
    assert checker.known(grammar) is not None, "it is not tried a third time"
    await checker.check(ONE, GOOD)


class Slow:
    """Tries grammars when the test says so."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.go: dict[str, threading.Event] = {}
        self.began = threading.Semaphore(0)

    def try_out(self, grammar: GrammarSpec, num_tokens: int) -> None:
        self.tried.append(grammar.source)
        self.began.release()
        if (event := self.go.get(grammar.source)) is not None:
            event.wait()

    def close(self) -> None:
        for event in self.go.values():
            event.set()


@pytest_asyncio.fixture
async def slow() -> AsyncIterator[tuple[Slow, GrammarChecker]]:
    trial = Slow()
    checker = GrammarChecker(trial)
    yield trial, checker
    await asyncio.to_thread(checker.close)


def regex(source: str) -> GrammarSpec:
    return GrammarSpec("regex", source)


async def test_one_tenants_grammars_leave_a_worker_to_others(
    slow: tuple[Slow, GrammarChecker],
) -> None:
    trial, checker = slow
    sources = [f"s{number}" for number in range(NUM_WORKERS + 1)]
    trial.go = {source: threading.Event() for source in sources}
    waiting = [asyncio.create_task(checker.check(ONE, regex(source))) for source in sources]
    await asyncio.to_thread(trial.began.acquire)
    await checker.check(OTHER, regex("o"))
    assert sorted(trial.tried) == ["o", "s0"]
    for event in trial.go.values():
        event.set()
    await asyncio.gather(*waiting)
    assert [source for source in trial.tried if source != "o"] == sources


class _Fails:
    """Fails as often as told, then tries everything with success."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)

    def try_out(self, grammar: GrammarSpec, num_tokens: int) -> None:
        if self._failures:
            raise self._failures.pop()

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("failure", "told"),
    [(CapacityError("no process"), CapacityError), (ValueError("a bug"), EngineFault)],
)
async def test_what_is_no_fault_of_a_grammar_is_not_held_against_it(
    failure: Exception, told: type[QuireError]
) -> None:
    checker = GrammarChecker(_Fails(failure))
    with pytest.raises(told):
        await checker.check(ONE, GOOD)
    await checker.check(ONE, GOOD)
    await asyncio.to_thread(checker.close)


class _Dies:
    """Its process ends without an answer as often as told; then it tries everything with
    success."""

    def __init__(self, num_deaths: int) -> None:
        self.num_tried = 0
        self._num_deaths = num_deaths

    def try_out(self, grammar: GrammarSpec, num_tokens: int) -> None:
        self.num_tried += 1
        if self.num_tried <= self._num_deaths:
            raise GrammarError("it takes too much") from EOFError()

    def close(self) -> None:
        """Nothing is open."""


async def test_a_process_that_was_ended_once_may_have_been_ended_by_the_system() -> None:
    checker = GrammarChecker(_Dies(1))
    with pytest.raises(GrammarError, match="it takes too much"):
        await checker.check(ONE, GOOD)
    await checker.check(ONE, GOOD)
    await asyncio.to_thread(checker.close)


async def test_a_grammar_whose_process_ends_twice_is_tried_no_more() -> None:
    trial = _Dies(9)
    checker = GrammarChecker(trial)
    for _ in range(4):
        with pytest.raises(GrammarError, match="it takes too much"):
            await checker.check(ONE, GOOD)
    assert trial.num_tried == 2
    await asyncio.to_thread(checker.close)


def test_a_schema_that_is_nested_and_referred_to_at_each_level_takes_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[Any] = []
    parts_of = endless_schema._parts_of_every_value

    def noted(schema: dict[str, Any]) -> list[Any]:
        looked.append(schema)
        return parts_of(schema)

    monkeypatch.setattr(endless_schema, "_parts_of_every_value", noted)
    monkeypatch.setattr(endless_schema, "MAX_STEPS", 1000)
    nested: dict[str, Any] = {"allOf": [{}] * 500}
    for _ in range(20):
        nested = {"properties": {"a": nested}, "required": ["a", 1, ["a"]]}
    nested["allOf"] = [{"$ref": "#" + "/properties/a" * level} for level in range(1, 20)]
    assert endless_reference(GrammarSpec("json_schema", json.dumps(nested))) is None
    assert len(looked) <= 1000


def test_a_source_that_was_not_compiled_is_not_explained() -> None:
    error = GrammarError("it has too many bytes")
    endless = json.dumps({"$ref": "#", "title": "a" * MAX_SOURCE_BYTES})
    assert in_our_words(error, GrammarSpec("json_schema", endless)) is error


async def test_a_request_that_is_cancelled_waits_no_longer(
    slow: tuple[Slow, GrammarChecker],
) -> None:
    trial, checker = slow
    trial.go = {"s": threading.Event()}
    waiting = asyncio.create_task(checker.check(ONE, regex("s")))
    await asyncio.to_thread(trial.began.acquire)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    trial.go["s"].set()
    await checker.check(ONE, regex("next"))


async def test_a_grammar_that_many_ask_for_at_once_is_tried_once(
    slow: tuple[Slow, GrammarChecker],
) -> None:
    """As a batch of requests with one new schema does, of more requests than grammars may wait."""
    trial, checker = slow
    trial.go = {"s": threading.Event()}
    asking = [asyncio.create_task(checker.check(ONE, regex("s"))) for _ in range(MAX_WAITING + 9)]
    await asyncio.to_thread(trial.began.acquire)
    asking.append(asyncio.create_task(checker.check(ONE, regex("s"))))
    await asyncio.sleep(0)
    trial.go["s"].set()
    async with asyncio.timeout(60):
        await asyncio.gather(*asking, checker.check(OTHER, regex("s")))
    assert trial.tried.count("s") <= 2, "both tenants may have it tried at the same time"
    assert not checker._asking


async def test_what_waits_at_the_end_is_refused(slow: tuple[Slow, GrammarChecker]) -> None:
    trial, checker = slow
    trial.go = {"s": threading.Event()}
    first, second = (asyncio.create_task(checker.check(ONE, regex(s))) for s in ("s", "t"))
    await asyncio.to_thread(trial.began.acquire)
    await asyncio.sleep(0)
    await asyncio.to_thread(checker.close)
    await first
    with pytest.raises(Draining):
        await second
    with pytest.raises(Draining):
        await checker.check(ONE, regex("u"))


def decode(number: int, grammar: GrammarSpec | None) -> Decode:
    return Decode(
        id=CommandId(number),
        context=[],
        output=[],
        tokens=[1],
        position=0,
        sampler=SamplerSpec(),
        stop=StopSpec(max_tokens=1),
        grammar=grammar,
    )


async def test_commands_come_back_as_they_were_or_refused(checker: GrammarChecker) -> None:
    sync = Synchronize(id=CommandId(9))
    commands: list[Command] = [decode(1, GOOD), sync, decode(2, regex("(a")), decode(3, None)]
    for _ in range(2):
        ready: asyncio.Future[list[Command]] = asyncio.get_running_loop().create_future()
        assert checker.checked(ONE, commands, ready.set_result)
        good, kept, bad, free = await ready
        assert (good, kept, free) == (commands[0], sync, commands[3])
        assert isinstance(bad, Decode)
        assert bad.grammar is None
        assert bad.refusal is not None
        assert "unclosed group" in bad.refusal.message
    assert not checker.checked(ONE, [decode(1, GOOD), sync], print), "it is known"


def test_tenants_take_turns() -> None:
    turns: TenantTurns[str] = TenantTurns(max_running=1, max_waiting=3, what="grammars")
    for tenant, tasks in ((ONE, "abc"), (OTHER, "x")):
        for task in tasks:
            turns.add(tenant, task)
    with pytest.raises(QuotaExceeded, match="3 grammars of this tenant wait"):
        turns.add(ONE, "d")
    assert turns.take() == (ONE, "a")
    assert turns.take() == (OTHER, "x")
    turns.add(OTHER, "y")
    assert turns.take() is None
    turns.done(ONE)
    turns.done(OTHER)
    assert [turns.take(), turns.take()] == [(ONE, "b"), (OTHER, "y")]
    turns.done(ONE)
    assert turns.take() == (ONE, "c")
