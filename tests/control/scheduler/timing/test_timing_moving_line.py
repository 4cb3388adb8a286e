"""A line through the latest measurements."""

from __future__ import annotations

import pytest

from quire.control.scheduler.timing.moving_line import MovingLine


def test_two_sizes_have_a_slope_and_one_has_none() -> None:
    line = MovingLine(0.9)
    assert line.slope_s is None
    line.observe(100, 3.0)
    line.observe(100, 5.0)
    assert line.slope_s is None
    assert (line.mean_size, line.mean_s) == (pytest.approx(100), pytest.approx(7.7 / 1.9))
    line.observe(200, 6.0)
    assert line.slope_s == pytest.approx((6.0 - 7.7 / 1.9) / 100)


def test_sizes_that_hardly_differ_have_no_slope() -> None:
    line = MovingLine(1.0)
    for size in (100, 104, 100, 104):
        line.observe(size, size)
    assert line.slope_s is None


def test_later_measurements_count_more() -> None:
    line = MovingLine(0.5)
    for size in (10, 20) * 10:
        line.observe(size, 5.0 * size)
    for size in (10, 20) * 10:
        line.observe(size, 2.0 * size + 1.0)
    assert line.slope_s == pytest.approx(2.0, rel=1e-3)
