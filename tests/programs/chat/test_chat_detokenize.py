"""Tokens to text: whole characters, and nothing of a stop string, however the tokens come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.programs.chat.detokenize import TextStream
from quire.testing import FakeTokenizer

TOKENIZER = FakeTokenizer()
END = TOKENIZER.special_id("<|end|>")
TOOL = TOKENIZER.special_id("<|tool|>")


def told(stream: TextStream, *parts: bytes) -> list[str]:
    """What is told after each of ``parts`` and at the end; one byte is one token."""
    return [*(stream.add(list(part)) for part in parts), stream.finish()]


def test_a_character_is_told_with_its_last_byte() -> None:
    sign = "€".encode()
    assert told(TextStream(TOKENIZER), b"a", sign[:1], sign[1:2], sign[2:] + b"b") == [
        "a", "", "", "€b", "",
    ]  # fmt: skip
    assert told(TextStream(TOKENIZER), b"a" + sign[:2]) == ["a", "\N{REPLACEMENT CHARACTER}"]


def test_a_stop_string_over_token_boundaries_is_never_told_in_part() -> None:
    stream = TextStream(TOKENIZER, stop=["STOP"])
    assert told(stream, b"go S", b"TO", b"", b"P and more", b"even more") == [
        "go ", "", "", "", "", "",
    ]  # fmt: skip
    assert stream.matched == "STOP"


def test_what_only_began_like_a_stop_string_is_told_in_the_end() -> None:
    stream = TextStream(TOKENIZER, stop=["STOP", "TOAST"])
    assert told(stream, b"S", b"TO", b"X", b"STO") == ["", "", "STOX", "", "STO"]
    assert stream.matched is None


def test_after_the_end_nothing_is_told() -> None:
    stream = TextStream(TOKENIZER, stop=["."])
    assert told(stream, b"x") == ["x", ""]
    assert (stream.add(list(b"more")), stream.finish()) == ("", "")
    cut = TextStream(TOKENIZER, stop=["."])
    assert told(cut, b"a.b", b"c.d") == ["a", "", ""]


@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one two")])
def test_the_text_ends_before_or_behind_the_stop_string(include: bool, text: str) -> None:
    stream = TextStream(TOKENIZER, stop=["two"], include_stop=include)
    assert told(stream, b"one two three") == [text, ""]


def test_the_stop_string_that_is_complete_first_ends_the_text() -> None:
    stream = TextStream(TOKENIZER, stop=["bcde", "cd", "d"])
    assert told(stream, b"abcdef") == ["ab", ""]
    assert stream.matched == "cd", "of those that end together the longer one"
    late = TextStream(TOKENIZER, stop=["f", "cd"])
    assert told(late, b"abcdef") == ["ab", ""]


def test_an_unfinished_character_before_a_stop_string_is_told_as_it_is() -> None:
    stream = TextStream(TOKENIZER, stop=["!"])
    assert told(stream, "€".encode()[:2], b"!") == ["", "\N{REPLACEMENT CHARACTER}", ""]


def test_special_tokens_add_nothing_unless_they_are_shown() -> None:
    tokens = [*b"a", END, *b"b", TOOL]
    assert TextStream(TOKENIZER).add(tokens) == "ab"
    assert TextStream(TOKENIZER, skip_special=False).add(tokens) == "a<|end|>b<|tool|>"
    assert TextStream(TOKENIZER, shown={TOOL}).add(tokens) == "ab<|tool|>"
    assert TextStream(TOKENIZER, shown={TOOL}).add([TOOL]) == "<|tool|>"


@given(st.text("aé€!", max_size=12), st.data())
def test_however_tokens_are_split_the_text_is_the_same(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    stops = data.draw(st.lists(st.text("aé!", min_size=1, max_size=3), max_size=2))
    whole = "".join(told(TextStream(TOKENIZER, stop=stops), raw))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=6)))
    places = [0, *cuts, len(raw)]
    parts = [raw[start:end] for start, end in pairwise(places)]
    stream = TextStream(TOKENIZER, stop=stops)
    pieces = told(stream, *parts)
    assert "".join(pieces) == whole
    ends = [text.find(stop) for stop in stops if stop in text]
    assert stream.matched is None if not ends else stream.matched in stops
