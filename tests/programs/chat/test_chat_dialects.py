"""Tool calls and reasoning in the forms of other models: what is read, however it is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.interfaces import ServedModel
from quire.programs.chat import (
    Answer,
    AnswerParser,
    Call,
    Dialect,
    TextStream,
    dialect_of,
    marker_tokens,
    parse_answer,
    whole_answer,
)
from quire.testing import FakeTokenizer

H, L, M = Dialect.HARMONY, Dialect.LLAMA, Dialect.MISTRAL
ARGS = '{"city": "Köln", "days": [1, {"a": "]}"}]}'
TOOLS = frozenset({"weather", "time"})


def call(name: str, arguments: str = "{}") -> tuple[str, str]:
    return name, arguments


def read(text: str, dialect: Dialect, parts: Sequence[int] = ()) -> Answer:
    """``text`` cut behind each of ``parts``."""
    parser = AnswerParser(tools=TOOLS, reasoning=True, dialect=dialect, new_id=lambda: "id")
    pieces, begin = [], 0
    for end in [*sorted(parts), len(text)]:
        pieces += parser.feed(text[begin:end])
        begin = end
    return whole_answer(pieces + parser.finish())


READ = [
    (L, "Hello.", "Hello.", "", []),
    (L, f'{{"name": "weather", "parameters": {ARGS}}}', "", "", [call("weather", ARGS)]),
    (L, f'\n <|python_tag|>{{"name": "time", "parameters": {ARGS}}}', "", "", [call("time", ARGS)]),
    (
        L,
        '{"type": "function", "name": "time", "parameters": {}}; {"name": "weather"}',
        "",
        "",
        [call("time"), call("weather")],
    ),
    (L, '{"name": "time"}\nThere.', "There.", "", [call("time")]),
    (L, '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', "", []),
    (L, '{"a": [1, 2]} is JSON', '{"a": [1, 2]} is JSON', "", []),
    (L, '{"name": "time", "par', "", "", [call("time", "")]),
    (L, "<|python_tag|>print(1)", "<|python_tag|>print(1)", "", []),
    (L, '<think>\nWell.\n</think>\n\n{"name": "time"}', "", "Well.", [call("time")]),
    (M, "Hello [TOOL] there.", "Hello [TOOL] there.", "", []),
    (
        M,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGS}}}, {{"name": "time"}}]',
        "",
        "",
        [call("weather", ARGS), call("time")],
    ),
    (M, f"[TOOL_CALLS]weather[ARGS]{ARGS}", "", "", [call("weather", ARGS)]),
    (
        M,
        f"Wait.\n[TOOL_CALLS]weather[CALL_ID]aB3dE6gH9[ARGS]{ARGS}[TOOL_CALLS]time[ARGS]{{}}",
        "Wait.",
        "",
        [call("weather", ARGS), call("time")],
    ),
    (M, "[TOOL_CALLS]time{}", "", "", [call("time")]),
    (M, f'[TOOL_CALLS]{{"name": "time", "arguments": {ARGS}}}', "", "", [call("time", ARGS)]),
    (M, "[TOOL_CALLS] are markers.", "[TOOL_CALLS] are markers.", "", []),
    (M, '[TOOL_CALLS] [{"a": 1}]', '[TOOL_CALLS] [{"a": 1}]', "", []),
    (M, "[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [1, 2]", "", []),
    (M, "[TOOL_CALLS]ti", "[TOOL_CALLS]ti", "", []),
    (M, '[TOOL_CALLS]time[ARGS]{"a', "", "", [call("time", '{"a')]),
    (H, "No header.", "No header.", "", []),
    (H, "<|channel|>final<|message|>Hello.<|return|>", "Hello.", "", []),
    (H, "<|channel|>final<|message|>Hello", "Hello", "", []),
    (
        H,
        "<|channel|>analysis<|message|>Well.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>a < b<|x|> c",
        "a < b<|x|> c",
        "Well.",
        [],
    ),
    (
        H,
        "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.weather <|constrain|>json<|message|>{ARGS}<|call|>",
        "",
        "Two.",
        [call("weather", ARGS)],
    ),
    (
        H,
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.time"
        "<|channel|>commentary json<|message|>{}<|call|>",
        "I look.",
        "",
        [call("time")],
    ),
    (
        H,
        "<|channel|>analysis to=browser.search<|message|>x<|call|><|start|>assistant"
        "<|channel|>final<|message|>y",
        "y",
        "x",
        [],
    ),
    (H, "<|channel|>final<|mess", "", "", []),
]


@pytest.mark.parametrize(("dialect", "text", "content", "reasoning", "calls"), READ)
def test_an_answer_is_read(
    dialect: Dialect, text: str, content: str, reasoning: str, calls: list[tuple[str, str]]
) -> None:
    answer = read(text, dialect)
    assert answer.content == content
    assert answer.reasoning == reasoning
    assert answer.calls == tuple(Call("id", *one) for one in calls)


@pytest.mark.parametrize(("dialect", "text"), [one[:2] for one in READ])
def test_every_cut_gives_the_same(dialect: Dialect, text: str) -> None:
    whole = read(text, dialect)
    assert read(text, dialect, range(1, len(text))) == whole
    for place in range(1, len(text)):
        assert read(text, dialect, [place]) == whole, place


FRAGMENTS = st.sampled_from(
    [
        "[TOOL_CALLS]",
        "[ARGS]",
        "[",
        "]",
        "{",
        "}",
        '"name": "time"',
        ", ",
        ";",
        " ",
        "time",
        '"arguments": ',
        "{}",
        '{"name": "time", ',
        "<think>",
        "</think>",
        "<|channel|>",
        "final",
        "analysis",
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "to=functions.time",
        "<|",
        "<|python_tag|>",
    ]
)


@given(
    dialect=st.sampled_from([Dialect.HERMES, H, L, M]),
    fragments=st.lists(FRAGMENTS, max_size=12),
    places=st.lists(st.integers(0, 200), max_size=6),
)
def test_nothing_depends_on_how_a_text_comes(
    dialect: Dialect, fragments: list[str], places: list[int]
) -> None:
    text = "".join(fragments)
    cuts = [place for place in places if place <= len(text)]
    assert read(text, dialect, cuts) == read(text, dialect)


@pytest.mark.parametrize(
    ("dialect", "begin"), [(Dialect.HERMES, "<tool_call>"), (L, ""), (M, "[TOOL_CALLS]")]
)
def test_what_goes_wrong_behind_its_name_is_a_call_however_it_comes(
    dialect: Dialect, begin: str
) -> None:
    text = begin + '{"name": "time", ]'
    whole = read(text, dialect)
    assert [one.name for one in whole.calls] == ["time"]
    assert read(text, dialect, range(len(text))) == whole


@pytest.mark.parametrize(
    ("dialect", "text", "open_call"),
    [
        (L, '{"name": "time", "parameters": {"a', 0),
        (L, '{"name": "time", "parameters": {"a": 1}', None),
        (M, '[TOOL_CALLS]time[ARGS]{}[TOOL_CALLS]time[ARGS]{"a', 1),
        (M, '[TOOL_CALLS][{"name": "time", "arguments": {"a', 0),
        (M, "[TOOL_CALLS]time[ARGS]{}", None),
        (H, '<|channel|>commentary to=functions.time<|message|>{"a', 0),
        (H, '<|channel|>commentary to=functions.time<|message|>{"a": 1}', None),
    ],
)
def test_a_call_that_is_cut_is_open(dialect: Dialect, text: str, open_call: int | None) -> None:
    parser = AnswerParser(tools=TOOLS, dialect=dialect)
    parser.feed(text)
    assert parser.open_call == open_call


def test_without_tools_calls_are_text() -> None:
    text = '[TOOL_CALLS] [{"name": "time"}]'
    assert parse_answer(text, tools=False, dialect=M).content == text
    text = '{"name": "time"}'
    assert parse_answer(text, tools=False, dialect=L).content == text
    text = "<|channel|>commentary to=functions.time<|message|>{}"
    assert parse_answer(text, tools=False, dialect=H).content == "{}"


def test_ids_of_mistral_are_those_that_its_templates_take() -> None:
    (one,) = parse_answer("[TOOL_CALLS]time{}", dialect=M).calls
    assert len(one.id) == 9
    assert one.id.isalnum()
    for text, dialect in (
        ('{"name": "time"}', L),
        ('<tool_call>{"name": "time"}</tool_call>', Dialect.HERMES),
    ):
        (other,) = parse_answer(text, dialect=dialect).calls
        assert re.fullmatch(r"call_[0-9a-f]{24}", other.id), "as OpenAI's are"


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        (None, Dialect.HERMES),
        ("{{ messages }}", Dialect.HERMES),
        ("<|im_start|> <tool_call> <|channel|><|message|>", Dialect.HERMES),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", M),
        ('<|start_header_id|> {"name": ..., "parameters": ...}', L),
        ("<|start_header_id|>{{ role }}", Dialect.HERMES),
        ("<|start|>assistant<|channel|>final<|message|>", H),
    ],
)
def test_a_template_tells_the_dialect(template: str | None, dialect: Dialect) -> None:
    @dataclass
    class Model:
        chat_template: str | None

    assert dialect_of(cast(ServedModel, Model(template))) is dialect


class Markers(FakeTokenizer):
    """The special token for a tool's turn is the marker of Mistral's calls."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text.replace("[TOOL_CALLS]", "<|tool|>"), special=special)


def test_markers_that_are_special_tokens_are_shown_to_the_reader_alone() -> None:
    tokenizer = Markers()
    marker = tokenizer.special_id("<|tool|>")
    assert marker_tokens(M, tokenizer, tools=True) == {marker}
    assert marker_tokens(M, tokenizer, tools=False) == frozenset()
    assert marker_tokens(H, FakeTokenizer(), tools=True) == {FakeTokenizer().special_id("<|end|>")}
    tokens = [*b"a", marker, tokenizer.special_id("<|user|>"), *b"b"]
    stream = TextStream(tokenizer, shown=frozenset({marker}))
    assert stream.add(tokens) + stream.finish() == "a<|tool|>b"
    plain = TextStream(tokenizer)
    assert plain.add(tokens) + plain.finish() == "ab"
