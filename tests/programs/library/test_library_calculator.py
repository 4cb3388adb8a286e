"""The agents' calculator: arithmetic, and nothing else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import InvalidArgument
from quire.programs.library.agents.calculator import calc


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12+30", "42"),
        ("(12 + 30) * 2", "84"),
        ("7/2", "3.5"),
        ("10/3", "3.33"),
        ("8/4", "2"),
        ("-3 - -4", "1"),
        ("2**10", "1024"),
        ("17 % 5 + 17 // 5", "5"),
        ("0.1+0.2", "0.3"),
    ],
)
def test_calc(expression: str, value: str) -> None:
    assert calc(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "1+", "a", "1/0", "__import__('os')", "(1).real", "[1]*9", "9**9**9", "2**-99999",
        "True", "1j", "(-8)**0.5", "'a'*9", "1 if 1 else 2", "f(1)", "1<2", "1" * 1001,
        "(" * 500 + "1" + ")" * 500, "1e999", "1e308*10-1e308*10", "3and 4", "\x00",
        "(10**1200)*(10**100)", "0.0**-1",
    ],
)  # fmt: skip
def test_calc_refuses(expression: str) -> None:
    with pytest.raises(InvalidArgument):
        calc(expression)


@given(st.text(alphabet="0123456789+-*/%(). e_j~<>", max_size=30))
def test_calc_never_raises_anything_else(expression: str) -> None:
    with suppress(InvalidArgument):
        assert isinstance(calc(expression), str)
