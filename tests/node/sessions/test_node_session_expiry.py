"""The order in which sessions are looked at, whatever their idle times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.ids import ProgramId
from quire.node.sessions.expiry import SessionExpiry


def due(expiry: SessionExpiry, now_s: float) -> list[int]:
    return [int(program) for program in expiry.take_due(now_s)]


def test_the_earliest_comes_first_and_only_once() -> None:
    expiry = SessionExpiry()
    for program, due_s in ((1, 30.0), (2, 10.0), (3, 20.0)):
        expiry.set(ProgramId(program), due_s)
    assert expiry.next_s == 10.0
    assert due(expiry, 9.9) == []
    assert due(expiry, 20.0) == [2, 3]
    assert due(expiry, 20.0) == []
    assert expiry.next_s == 30.0


def test_a_later_time_replaces_the_earlier_one() -> None:
    expiry = SessionExpiry()
    expiry.set(ProgramId(1), 10.0)
    expiry.set(ProgramId(1), 20.0)
    assert due(expiry, 15.0) == []
    assert due(expiry, 20.0) == [1]


def test_an_ended_session_is_not_looked_at() -> None:
    expiry = SessionExpiry()
    expiry.set(ProgramId(1), 10.0)
    expiry.discard(ProgramId(1))
    assert expiry.next_s is None
    assert due(expiry, 10.0) == []


def test_many_short_sessions_leave_nothing_behind() -> None:
    expiry = SessionExpiry()
    for number in range(10_000):
        expiry.set(ProgramId(number), 600.0 + number)
        expiry.discard(ProgramId(number))
    assert len(expiry) == 0
    assert len(expiry._heap) <= 64


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, 1.0, 2.0, 3.0]))))
def test_it_is_the_table_of_times_that_it_was_told(told: list[tuple[int, float | None]]) -> None:
    expiry, times = SessionExpiry(), dict[int, float]()
    for program, due_s in told:
        if due_s is None:
            times.pop(program, None)
            expiry.discard(ProgramId(program))
        else:
            times[program] = due_s
            expiry.set(ProgramId(program), due_s)
        assert expiry.next_s == min(times.values(), default=None)
    assert sorted(due(expiry, 2.0)) == sorted(one for one, due_s in times.items() if due_s <= 2.0)
