"""Bodies before any schema: what is refused, and that nothing else is changed."""

from __future__ import annotations

import json
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.errors.errors import HttpError
from quire.server.requests.strict_json import MAX_DEPTH, MAX_INTEGER, strict_loads

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER + 1, MAX_INTEGER - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v) | st.dictionaries(TEXT, v), max_leaves=20)


@given(VALUES)
def test_good_json_means_what_json_means(value: object) -> None:
    assert strict_loads(json.dumps(value).encode()) == value


PIECES = st.sampled_from(
    [
        b"{", b"}", b"[", b"]", b",", b":", b'"', b'"a"', b'"a":', b'"\\u0000"',
        b'"\\ud83d\\ude00"', b'"\\ud800"', b"1", b"-0", b"1e999", b"0.1", b"9" * 20, b"9" * 5000,
        b"NaN", b"null", b"true",
        b" ", b"\n", b"\xff", "\ufeff".encode(), "ü".encode(), b"[" * 70, b'{"a":' * 70, b"]" * 70,
    ]
)  # fmt: skip
NEARLY = st.lists(PIECES, max_size=12).map(b"".join)
"""What is often JSON, or wrong in one place; random bytes end at their first one."""


@given(st.binary(max_size=200) | NEARLY)
def test_any_bytes_give_a_value_or_a_400(body: bytes) -> None:
    with suppress(HttpError):  # any other exception would be a 500
        strict_loads(body)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' occurs twice"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b'{"a": "x\\u0000y"}', "NUL"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": ', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a": [1, {"b": [2, 9223372036854775808]}]}', "64 bits"),
        (b'[["x", {"y": 1e999}]]', "too large"),
        (b"[1, -9223372036854775808]", "64 bits"),
        (b"[true, 1, 9223372036854775808]", "64 bits"),
        (b"1" * 5000, "too many digits"),
        (str(MAX_INTEGER).encode(), "64 bits"),
        (str(-MAX_INTEGER).encode(), "64 bits"),
    ],
)
def test_dark_corners_are_refused_by_name(body: bytes, part: str) -> None:
    with pytest.raises(HttpError) as caught:
        strict_loads(body)
    assert caught.value.status_code == 400
    assert part in caught.value.detail


def test_the_deepest_allowed_nesting_passes() -> None:
    assert strict_loads(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_a_surrogate_pair_is_one_character() -> None:
    assert strict_loads(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


def test_a_long_body_is_refused_by_name_too(http: httpx.Client) -> None:
    """It is read in a thread; what is wrong with it must come back from there."""
    body = b'{"prompt": "' + b"x" * (256 << 10) + b'", "seed": NaN}'
    headers = {"content-type": "application/json"}
    answer = http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"
