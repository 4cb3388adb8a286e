"""The next batch is due shortly before the running one should end."""

from __future__ import annotations

import pytest

from quire.control.scheduler.timing.batches_ahead import BatchesAhead


def test_nothing_is_held_back_until_a_batch_was_measured() -> None:
    assert BatchesAhead().due_s(16, 3.0) == 3.0


def test_a_tenth_of_the_expected_time_is_left() -> None:
    ahead = BatchesAhead()
    ahead.observe(8, 0.4)
    assert ahead.due_s(16, 3.0) == pytest.approx(3.0 + 0.9 * 0.8)


def test_a_short_batch_is_never_waited_for() -> None:
    ahead = BatchesAhead()
    ahead.observe(1, 0.004)
    assert ahead.due_s(1, 3.0) == 3.0
    assert ahead.due_s(2, 3.0) == pytest.approx(3.003), "5 ms before its end"


def test_the_expected_time_follows_what_is_measured() -> None:
    ahead = BatchesAhead()
    ahead.observe(1, 1.0)
    for _ in range(50):
        ahead.observe(10, 1.0)
    assert ahead.due_s(10, 0.0) == pytest.approx(0.9, rel=0.01)
