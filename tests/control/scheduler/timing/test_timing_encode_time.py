"""What an encoder's batch takes is a line over its tokens."""

from __future__ import annotations

import pytest

from quire.control.scheduler.timing.encode_time import EncodeTime


def observed(*batches: tuple[int, float]) -> EncodeTime:
    time = EncodeTime()
    for num_tokens, elapsed_s in batches:
        time.observe(num_tokens, elapsed_s)
    return time


def test_nothing_is_known_until_a_batch_was_measured() -> None:
    time = EncodeTime()
    assert (time.token_s, time.expected_s(16), time.knows_both) == (None, None, False)


def test_batches_of_one_size_say_nothing_of_what_a_batch_takes_beside_its_tokens() -> None:
    time = observed((16, 0.45), (16, 0.45))
    assert (time.batch_s, time.knows_both) == (0.0, False)
    assert time.expected_s(32) == pytest.approx(0.9)


def test_batches_of_two_sizes_are_two_points_of_the_line() -> None:
    time = observed((16, 0.45), (1, 0.075))
    assert (time.batch_s, time.token_s) == (pytest.approx(0.05), pytest.approx(0.025))
    assert time.knows_both
    assert time.expected_s(4) == pytest.approx(0.15)


def test_what_was_learned_from_sizes_stays_while_all_batches_have_one() -> None:
    time = observed((16, 0.45), (1, 0.075), *[(16, 0.45)] * 200)
    assert time.batch_s == pytest.approx(0.05)
    assert time.expected_s(16) == pytest.approx(0.45)


def test_neither_part_of_the_line_is_negative() -> None:
    faster = observed((1, 0.5), (16, 0.1))
    assert (faster.batch_s, faster.token_s) == (pytest.approx(0.2895, abs=1e-3), 0.0)
    steeper = observed((1, 0.01), (16, 1.6))
    assert steeper.batch_s == pytest.approx(0.0)


def test_the_line_follows_what_is_measured() -> None:
    time = observed(*[(16, 1.0), (1, 1.0)] * 5, *[(16, 0.45), (1, 0.075)] * 50)
    assert time.batch_s == pytest.approx(0.05, rel=0.01)
    assert time.token_s == pytest.approx(0.025, rel=0.01)
