"""How long a program that waits for a tool or a person is held."""

from __future__ import annotations

import pytest

from quire.control.scheduler.pausing.returns import MIN_SAMPLES, NEVER_S, Returns, ReturnTimes

LONG_S = 1000.0


def learned(*waits_s: float, is_first: bool = False) -> ReturnTimes:
    times = ReturnTimes(is_first)
    for number in range(max(MIN_SAMPLES, 4 * len(waits_s))):
        times.add(waits_s[number % len(waits_s)])
    return times


def test_tools_that_are_quicker_than_computing_the_pool_again_are_waited_for() -> None:
    hold_s = learned(0.8, 1.0, 1.2).hold_s(10.0, LONG_S)
    assert 1.2 <= hold_s < 2.4


def test_people_that_take_longer_than_computing_the_pool_again_are_not() -> None:
    assert learned(30.0, 60.0, 90.0).hold_s(10.0, LONG_S) == 0.0


def test_the_longer_the_pool_takes_the_longer_its_pages_are_held() -> None:
    times = learned(30.0, 60.0, 90.0)
    assert times.hold_s(10.0, LONG_S) == 0.0
    assert times.hold_s(300.0, LONG_S) >= 90.0


def test_where_most_do_not_come_back_those_are_held_that_may_come_soon() -> None:
    """One of four comes back, always within a second: afterwards it is known not to."""
    times = learned(1.0, NEVER_S, NEVER_S, NEVER_S)
    assert times.hold_s(3.0, LONG_S) == 0.0, "a second for each of four, to save three"
    assert 1.0 <= times.hold_s(5.0, LONG_S) < 2.0


def test_nobody_is_held_that_never_comes_back() -> None:
    assert learned(NEVER_S).hold_s(1e6, LONG_S) == 0.0


def test_of_an_unknown_class_those_are_held_that_have_come_back_before() -> None:
    assert ReturnTimes(is_first=True).hold_s(10.0, LONG_S) == 0.0
    assert ReturnTimes(is_first=False).hold_s(10.0, LONG_S) == 10.0
    assert ReturnTimes(is_first=False).hold_s(10.0, 4.0) == 4.0


def test_a_hold_has_an_end() -> None:
    assert learned(50.0).hold_s(1e6, 7.0) == 7.0


def test_what_is_learned_follows_what_happens() -> None:
    times = learned(1.0)
    assert times.hold_s(10.0, LONG_S) > 0
    for _ in range(300):
        times.add(100.0)
    assert times.hold_s(10.0, LONG_S) == 0.0


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_hold_is_not_worked_out_anew_for_each_call(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = learned(1.0)
    known_s = times.hold_s(10.0, LONG_S)
    times._sorted.clear()
    assert times.hold_s(10.0 * factor, LONG_S) == known_s
    assert times.hold_s(20.0, LONG_S) == 0.0


def test_classes_are_told_apart_and_bounded() -> None:
    returns = Returns()
    first = returns.of(("t", "chat", True))
    assert returns.of(("t", "chat", True)) is first
    assert returns.of(("t", "chat", False)) is not first
    for number in range(1000):
        returns.of(("t", f"kind {number}", True))
    assert returns.of(("t", "chat", True)) is not first


def test_the_chance_to_come_back_is_that_of_those_who_have_waited_as_long() -> None:
    times = learned(1.0, 10.0, NEVER_S, NEVER_S)
    assert times.chance(0.0) == 0.5
    assert times.chance(1.0) == pytest.approx(1 / 3)
    assert times.chance(10.0) == 0.0
    assert learned(1.0).chance(2.0) == 0.0, "nobody of its class has waited for as long"
    assert ReturnTimes(is_first=True).chance(100.0) == 0.5


def test_pages_that_have_left_are_back_before_most_who_wait_return() -> None:
    times = learned(29.0, 30.0, 31.0)
    back_s = times.back_s(5.0, 4.0)
    assert back_s is not None
    assert 24.0 <= back_s <= 29.0
    assert times.back_s(5.0, 0.0) is None, "a move that takes no time needs none before"


def test_pages_whose_return_nobody_can_tell_stay_away() -> None:
    rarely = learned(100.0, *[NEVER_S] * 9)
    assert rarely.back_s(5.0, 4.0) is None, "most never come"
    anytime = learned(*[10.0 * number for number in range(1, 40)], *[NEVER_S] * 10)
    assert anytime.back_s(5.0, 4.0) is None, "few come within the time that a move takes"
    assert ReturnTimes(is_first=False).back_s(5.0, 4.0) is None


def test_it_is_learned_anew_when_an_eighth_of_all_is_new() -> None:
    times = ReturnTimes(is_first=False)
    for _ in range(64):
        times.add(1.0)
    assert times.hold_s(1.05, LONG_S) > 0.0
    for num_new in range(1, 11):
        times.add(NEVER_S)
        is_outdated = 8 * num_new >= 64 + num_new
        assert (times.hold_s(1.05, LONG_S) == 0.0) is is_outdated, num_new
    assert is_outdated
