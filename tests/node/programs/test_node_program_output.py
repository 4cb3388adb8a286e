"""The lines of a program's log, as their readers see them."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest

from quire.node.programs.output import ProgramOutput
from quire.node.programs.records import ProgramLimits


def never(_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ({"loss": nan}, {"loss": "not shown: it is NaN, which JSON does not have"}),
        ({"all": [1, inf]}, {"all": "not shown: it contains Infinity, which JSON does not have"}),
        ({"a\ud800": 1}, {"not shown": "its name 'a\\ud800' has half of a surrogate pair"}),
    ],
)
def test_a_field_that_is_no_json_says_so_and_the_others_stay(
    bad: dict[str, Any], shown: dict[str, Any]
) -> None:
    output = ProgramOutput(ProgramLimits(), never, never)
    output.note("info", "a step", {"step": 3, **bad})
    [line] = output.lines()
    assert line.fields == {"step": 3, **shown}
    json.dumps(line.fields, allow_nan=False).encode()
