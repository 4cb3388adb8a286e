"""The engines that the next decision looks at."""

from __future__ import annotations

from quire.control.engines.awake import Awake


def test_each_is_met_once_and_in_order() -> None:
    awake = Awake()
    for number in (5, 1, 3, 5, 1):
        awake.add(number)
    assert awake.all() == [1, 3, 5]
    assert 3 in awake
    assert 2 not in awake


def test_who_is_added_behind_the_one_at_hand_is_met_too() -> None:
    awake, met = Awake(), []
    awake.add(2)
    number = awake.after(-1)
    while number is not None:
        met.append(number)
        if number == 2:
            awake.add(7)
            awake.add(1)  # before it: at the next decision
        number = awake.after(number)
    assert met == [2, 7]
    assert awake.all() == [1, 2, 7]


def test_who_rests_is_met_no_more() -> None:
    awake = Awake()
    for number in range(4):
        awake.add(number)
    awake.keep([0, 3])
    assert awake.after(0) == 3
    assert awake.after(3) is None
