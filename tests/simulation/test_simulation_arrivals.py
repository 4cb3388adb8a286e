"""Arrivals: times by kind, and figures that are refused."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import pytest

from quire.core.errors import ConfigError
from quire.simulation.arrivals import Arrivals


def test_poisson_has_the_rate_and_keeps_its_pattern_at_another() -> None:
    slow, fast = (Arrivals("poisson", rate).times_s(4000, seed=1) for rate in (0.5, 2.0))
    assert 4000 / slow[-1] == pytest.approx(0.5, rel=0.05)
    assert fast == pytest.approx([at_s / 4 for at_s in slow])
    assert all(a <= b for a, b in pairwise(slow))
    assert Arrivals("poisson", 0.5).times_s(10, seed=2) != slow[:10]


def test_closed_and_at_once() -> None:
    assert Arrivals("closed", width=2).times_s(4, seed=1) == [0.0, 0.0, inf, inf]
    assert Arrivals("closed", width=9).times_s(2, seed=1) == [0.0, 0.0]
    assert Arrivals("at-once").times_s(3, seed=1) == [0.0] * 3


@pytest.mark.parametrize(
    ("kind", "rate", "width", "told"),
    [
        ("bursty", 1.0, 1, "'bursty'.*poisson.*closed.*at-once"),
        ("poisson", 0.0, 1, "0.0 programs/s.*above 0"),
        ("poisson", nan, 1, "nan"),
        ("poisson", inf, 1, "inf"),
        ("closed", 1.0, 0, "width is 0: choose at least 1 program at a time"),
    ],
)
def test_figures_that_make_no_arrivals(kind: str, rate: float, width: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Arrivals(kind, rate, width)
