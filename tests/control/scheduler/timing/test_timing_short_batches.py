"""A batch goes short if those who stand in it gain more than those who wait lose."""

from __future__ import annotations

from quire.control.scheduler.timing.encode_time import EncodeTime
from quire.control.scheduler.timing.short_batches import ShortBatches


def short_batches(*, earned_s: float = 100.0) -> ShortBatches:
    """An encoder that takes 0.05 s for a batch and 0.025 s for each token."""
    time = EncodeTime()
    time.observe(16, 0.45)
    time.observe(1, 0.075)
    short = ShortBatches(time)
    short.earn(earned_s)
    return short


def test_nothing_goes_short_before_sizes_were_compared() -> None:
    time = EncodeTime()
    short = ShortBatches(time)
    time.observe(16, 0.45)
    short.earn(0.45)
    assert not short.may_go()


def test_who_stands_in_it_is_weighed_against_who_waits() -> None:
    short = short_batches()
    assert short.is_worth(1, 13, 6), "0.325 s earlier for one, 0.05 s later for six"
    assert not short.is_worth(1, 13, 7)
    assert short.is_worth(2, 13, 7), "two of them"
    assert not short.is_worth(1, 1, 1), "one token is done sooner in this batch than in the next"
    assert not short.is_worth(0, 13, 1), "nobody gains who waits for more than this batch"


def test_short_batches_take_a_share_of_the_time() -> None:
    short = short_batches(earned_s=0.0)
    assert not short.may_go()
    short.earn(0.9)
    assert not short.may_go(), "0.045 s were earned"
    short.earn(0.2)
    assert short.may_go()
    short.spend()
    assert not short.may_go()


def test_after_a_long_time_without_any_only_a_few_may_follow_one_another() -> None:
    short = short_batches(earned_s=1e6)
    for _ in range(4):
        assert short.may_go()
        short.spend()
    assert not short.may_go()
