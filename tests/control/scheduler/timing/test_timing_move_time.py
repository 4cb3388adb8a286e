"""The time that a block takes between two tiers."""

from __future__ import annotations

from quire.control.scheduler.timing.move_time import MoveTime


def test_what_is_measured_is_averaged_and_what_is_not_changes_nothing() -> None:
    times = MoveTime()
    times.observe(0.0, 10)
    assert times.block_s is None
    times.observe(1.0, 10)
    assert times.block_s == 0.1
    times.observe(6.0, 10)
    assert 0.1 < times.block_s < 0.6
    known = times.block_s
    times.observe(0.0, 10)
    assert times.block_s == known
