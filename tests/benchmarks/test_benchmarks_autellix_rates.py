"""Throughput at equal latency, read off load curves."""

from __future__ import annotations

from math import inf, sqrt

import pytest

from benchmarks.autellix.rates import Rate, median_of, rate_at, ratio_of


def test_between_two_rates_the_curve_is_straight_on_logarithmic_axes() -> None:
    assert rate_at([(1.0, 1.0), (4.0, 4.0), (8.0, 64.0)], 2.0).value == pytest.approx(2.0)
    assert rate_at([(1.0, 1.0), (2.0, 4.0)], 2.0) == Rate(pytest.approx(sqrt(2.0)))


def test_it_is_the_first_rate_that_is_too_high_and_the_level_itself_is_reached() -> None:
    assert rate_at([(1.0, 1.0), (2.0, 2.0), (4.0, 8.0), (8.0, 1.0)], 2.0).value == pytest.approx(2)


def test_a_rate_that_was_not_tried_is_a_bound() -> None:
    assert rate_at([(1.0, 3.0), (2.0, 4.0)], 2.0) == Rate(1.0, "<")
    assert rate_at([(1.0, 1.0), (2.0, 2.0)], 2.0) == Rate(2.0, ">")
    assert str(Rate(2.0, ">")) == ">2"


def test_a_program_that_failed_is_beyond_any_latency() -> None:
    assert rate_at([(1.0, 1.0), (2.0, inf)], 100.0) == Rate(1.0)


def test_a_ratio_is_a_bound_where_one_of_its_parts_is() -> None:
    assert ratio_of(Rate(3.0), Rate(2.0)) == Rate(1.5)
    assert ratio_of(Rate(3.0, ">"), Rate(2.0)) == Rate(1.5, ">")
    assert ratio_of(Rate(3.0), Rate(2.0, "<")) == Rate(1.5, ">")
    assert ratio_of(Rate(3.0), Rate(2.0, ">")) == Rate(1.5, "<")
    assert ratio_of(Rate(3.0, ">"), Rate(2.0, "<")) == Rate(1.5, ">")
    assert ratio_of(Rate(3.0, ">"), Rate(2.0, ">")) is None


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        ([Rate(1.0), Rate(2.0), Rate(3.0, ">")], "2"),
        ([Rate(1.0, ">"), Rate(2.0), Rate(3.0)], ">2"),
        ([Rate(1.0), Rate(2.0, ">"), Rate(3.0)], ">2"),
        ([Rate(1.0, "<"), Rate(2.0), Rate(3.0)], "2"),
        ([Rate(1.0), Rate(2.0), Rate(3.0, "<")], "<2"),
        ([Rate(1.0, ">"), Rate(2.0), Rate(3.0, "<")], "</>2"),
        ([Rate(1.0), Rate(3.0, ">")], ">2"),
        ([], "-"),
    ],
)
def test_a_median_is_a_bound_only_if_a_bound_may_move_it(rates: list[Rate], text: str) -> None:
    assert median_of(rates) == text
