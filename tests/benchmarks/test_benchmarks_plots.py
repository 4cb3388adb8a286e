"""Lines and bars of one figure can be told apart."""

from __future__ import annotations

from benchmarks.plots import look_of_bar, look_of_line


def test_no_two_of_forty_look_the_same() -> None:
    for look in (look_of_line, look_of_bar):
        assert len({tuple(look(number).items()) for number in range(40)}) == 40


def test_the_first_ten_differ_by_colour_alone() -> None:
    assert [look_of_line(number)["color"] for number in range(10)] == [f"C{n}" for n in range(10)]
    assert {look_of_bar(number)["hatch"] for number in range(10)} == {""}
