"""The next batch is due shortly before the running one should end."""

from __future__ import annotations

import pytest

from quire.control.scheduler.timing.batches_ahead import next_due_s


def test_nothing_is_held_back_until_a_batch_was_measured() -> None:
    assert next_due_s(3.0, None) == 3.0


def test_a_tenth_of_the_expected_time_is_left() -> None:
    assert next_due_s(3.0, 0.8) == pytest.approx(3.0 + 0.9 * 0.8)


def test_a_short_batch_is_never_waited_for() -> None:
    assert next_due_s(3.0, 0.004) == 3.0
    assert next_due_s(3.0, 0.008) == pytest.approx(3.003), "5 ms before its end"
