"""When a message that an engine works on is given up."""

from __future__ import annotations

import pytest

from quire.node.transports.message_times import MessageTimeLimit


def known(durations: list[float], num: int = 64) -> MessageTimeLimit:
    times, now = MessageTimeLimit(120.0, 600.0), 0.0
    for number in range(num):
        times.sent(now)
        now += durations[number % len(durations)]
        times.answered(now)
    return times


def test_as_long_as_little_is_known_the_most_is_allowed() -> None:
    assert MessageTimeLimit(120.0, 600.0).limit_s == 600.0
    assert known([0.01], 63).limit_s == 600.0
    assert known([0.01]).limit_s == 120.0


@pytest.mark.parametrize(("longest_s", "limit_s"), [(1.0, 120.0), (10.0, 200.0), (50.0, 600.0)])
def test_the_longest_message_decides_within_bounds(longest_s: float, limit_s: float) -> None:
    assert known([0.1, longest_s, 0.2]).limit_s == pytest.approx(limit_s)


def test_messages_are_answered_in_their_order() -> None:
    times = MessageTimeLimit(0.0, 600.0)
    times.answered(5.0)  # to none
    for now in range(64):
        times.sent(float(now))
    for now in range(64):
        times.answered(now + 2.0)
    assert times.limit_s == 40.0


def test_a_small_most_bounds_the_least() -> None:
    assert MessageTimeLimit(120.0, 5.0).limit_s == 5.0
