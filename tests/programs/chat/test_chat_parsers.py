"""Parsers: what they say, and that it does not depend on how the text arrives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.programs.chat import Answer, AnswerParser, Call, TextStream, whole_answer
from quire.testing import FakeTokenizer

CALL = '<tool_call>{"name": "calc", "arguments": {"expression": "1+2"}}</tool_call>'
CALC = ("calc", {"expression": "1+2"})


def parse(parts: Sequence[str], *, reasoning: bool = False) -> Answer:
    ids = count()
    parser = AnswerParser(tools=True, reasoning=reasoning, new_id=lambda: f"call_{next(ids)}")
    pieces = [piece for part in parts for piece in parser.feed(part)]
    return whole_answer(pieces + parser.finish())


def cut(text: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


FRAGMENTS = st.lists(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            '{"name": "f", "arguments": {"a": [1, {"b": "}"}]}}',
            '{"arguments": {"a": "</tool_call>"}, "name": "g"}',
            '{"name": "h", "arguments": "{\\"x\\": 1}"}',
            '{"name": 3}',
            '{"name": "i", "arguments": {bad',
            '{"name": "j", "arguments": null, "more": 1.5e3 }',
            "\n",
            "  ",
            "text",
            "<",
            "</",
            "\\",
            '"',
            "é",
        ]
    ),
    max_size=12,
).map("".join)


def test_arguments_without_end_are_a_call_as_they_were_written() -> None:
    nested = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for name, text in (("f", nested), ("g", '{"a": 1}')):
        whole = f'<tool_call>{{"name": "{name}", "arguments": {text}}}</tool_call>'
        assert parse([whole]) == Answer("", "", (Call("call_0", name, text),))
    early = f'<tool_call>{{"arguments": {nested}, "name": "f"}}</tool_call>'
    assert parse([early]) == Answer(early, "", ())


@given(FRAGMENTS, st.lists(st.integers(0, 400), max_size=8), st.booleans())
@example(CALL + "\n" + CALL, [3, 40, 80], False)
def test_the_same_answer_however_it_is_cut(text: str, places: list[int], reasoning: bool) -> None:
    assert parse(cut(text, places), reasoning=reasoning) == parse([text], reasoning=reasoning)
    assert parse(list(text), reasoning=reasoning) == parse([text], reasoning=reasoning)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain", "plain", []),
        (CALL, "", [("calc", {"expression": "1+2"})]),
        (f"Let me see.\n{CALL}\n", "Let me see.", [("calc", {"expression": "1+2"})]),
        (f"{CALL}\n{CALL}", "", [("calc", {"expression": "1+2"})] * 2),
        ('<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", {})]),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", {"a": 1})]),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "",
            [("f", {"a": 1})],
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>!',
            "!",
            [("f", {"a": "</tool_call>"})],
        ),
        ("a <tool_call>no json</tool_call>", "a <tool_call>no json</tool_call>", []),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        *(
            (f"<tool_call>{bad}</tool_call>{CALL}", f"<tool_call>{bad}</tool_call>", [CALC])
            for bad in (
                r'{"name": "ti\qme", "arguments": {}}',
                r'{"na\qme": "time", "arguments": {}}',
                '{"name": time, "arguments": {}}',
                r'{"arguments": {"a": \q}, "name": "time"}',
            )
        ),
        ("cut <tool_ca", "cut <tool_ca", []),
        ('x\n<tool_call>{"na', 'x\n<tool_call>{"na', []),
    ],
)
def test_calls_and_content(text: str, content: str, calls: list[tuple[str, object]]) -> None:
    answer = parse([text])
    assert answer.content == content
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == calls


def test_a_call_streams_its_arguments() -> None:
    parser = AnswerParser(tools=True, new_id=lambda: "id")
    text = '<tool_call>{"name": "f", "arguments": {"text": "long'
    answer = whole_answer(parser.feed(text))
    assert answer.calls == (Call("id", "f", '{"text": "long'),)
    assert whole_answer(parser.feed("") + parser.finish()) == Answer("", "", ())


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", "why", "because"),
        ("\n<think>why", "why", ""),
        ("no <think>x</think>", "", "no <think>x</think>"),
        ("<think></think>yes", "", "yes"),
        ("<thi", "", "<thi"),
    ],
)
def test_reasoning_is_told_apart(text: str, reasoning: str, content: str) -> None:
    answer = parse([text], reasoning=True)
    assert (answer.reasoning, answer.content) == (reasoning, content)


def test_reasoning_that_the_prompt_has_opened() -> None:
    parser = AnswerParser(reasoning=True, starts_in_reasoning=True)
    answer = whole_answer(parser.feed("why</think>because") + parser.finish())
    assert (answer.reasoning, answer.content) == ("why", "because")


def expected_text(raw: bytes, stops: list[str], include_stop: bool) -> str:
    ends = [
        (raw.find(stop) + len(stop), raw.find(stop))
        for stop in map(str.encode, stops)
        if stop in raw
    ]
    if ends:
        end, start = min(ends)
        raw = raw[: end if include_stop else start]
    return raw.decode("utf-8", "replace")


@given(
    st.one_of(st.text("abé€😀\n").map(str.encode), st.binary(max_size=12)),
    st.lists(st.sampled_from(["a", "ab", "ba", "€", "aa", "éb"]), max_size=2),
    st.lists(st.integers(0, 30), max_size=5),
    st.booleans(),
)
def test_text_does_not_depend_on_how_tokens_arrive(
    raw: bytes, stops: list[str], places: list[int], include_stop: bool
) -> None:
    stream = TextStream(FakeTokenizer(), stop=stops, include_stop=include_stop)
    bounds = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    told = [stream.add(list(raw[start:end])) for start, end in pairwise(bounds)]
    assert "".join(told) + stream.finish() == expected_text(raw, stops, include_stop)
    assert stream.add([65]) == ""


def test_nothing_of_a_stop_string_is_shown() -> None:
    stream = TextStream(FakeTokenizer(), stop=["Observation:"])
    assert stream.add(list(b"42\nObser")) == "42\n"
    assert stream.add(list(b"ved ")) == "Observed "
    assert stream.add(list(b"Observation: 1")) == ""
    assert stream.matched == "Observation:"
    assert stream.finish() == ""


def test_special_tokens_are_silent_unless_asked_for() -> None:
    tokenizer = FakeTokenizer()
    tokens = tokenizer.encode("a<|end|>")
    assert TextStream(tokenizer).add(tokens) == "a"
    assert TextStream(tokenizer, skip_special=False).add(tokens) == "a<|end|>"
