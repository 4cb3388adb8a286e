"""An array read in pieces gives the elements of the array read as a whole."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import InvalidArgument
from quire.programs.workflow.execution import json_elements
from quire.programs.workflow.execution.json_elements import JsonElements

INNER = st.none() | st.booleans() | st.integers() | st.text(max_size=6)
VALUES = (
    INNER | st.lists(INNER, max_size=3) | st.dictionaries(st.text(max_size=3), INNER, max_size=2)
)


@settings(max_examples=50)
@given(st.lists(VALUES, max_size=5), st.booleans(), st.integers(0, 3), st.data())
def test_pieces_may_be_cut_anywhere(
    values: list[Any], ascii_only: bool, indent: int, data: st.DataObject
) -> None:
    text = json.dumps(values, ensure_ascii=ascii_only, indent=indent or None)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
    places = [0, *sorted(cuts), len(text)]
    parser = JsonElements()
    for start, stop in pairwise(places):
        parser.feed(text[start:stop])
        assert parser.elements == values[: len(parser.elements)]
    assert parser.elements == values
    assert parser.ended


def test_an_element_is_given_when_it_is_complete() -> None:
    parser = JsonElements()
    parser.feed(' ["a, b]", ')
    assert parser.elements == ["a, b]"]
    parser.feed('"c\\"')
    assert parser.elements == ["a, b]"]
    parser.feed('"]')
    assert (parser.elements, parser.ended) == (["a, b]", 'c"'], True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', "'{' stands before the JSON array"),
        ("[1] x", "'x' stands behind the JSON array"),
        ("[1,,2]", "an element is not JSON"),
        ("[1,]", "an element is not JSON"),
        ("[word]", "an element is not JSON"),
    ],
)
def test_what_is_no_array_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        JsonElements().feed(text)


def test_what_it_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_elements, "MAX_ELEMENT_CHARS", 8)
    monkeypatch.setattr(json_elements, "MAX_ELEMENTS", 3)
    with pytest.raises(InvalidArgument, match="more than 8 characters"):
        JsonElements().feed('["123456789')
    with pytest.raises(InvalidArgument, match="more than 3 elements"):
        JsonElements().feed("[1,2,3,4]")
