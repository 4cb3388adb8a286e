"""What a program's failed commands are remembered by, and that it is bounded."""

from __future__ import annotations

from quire.control.programs.failures import Failures
from quire.core.ids import CommandId


def test_the_latest_are_known_and_older_ones_are_not_taken_for_successes() -> None:
    failures = Failures(limit=2)
    for number in (3, 5, 9):
        failures.add(CommandId(number))
    assert len(failures) == 2
    assert [CommandId(number) in failures for number in (3, 5, 9)] == [False, True, True]
    assert [failures.may_have_forgotten(CommandId(number)) for number in (2, 3, 4)] == [
        True, True, False
    ]  # fmt: skip


def test_the_same_one_counts_once() -> None:
    failures = Failures(limit=2)
    for number in (3, 3, 5):
        failures.add(CommandId(number))
    assert len(failures) == 2
    assert not failures.may_have_forgotten(CommandId(3))


def test_nothing_is_forgotten_at_first() -> None:
    assert not Failures().may_have_forgotten(CommandId(0))
    assert not Failures().may_have_forgotten(CommandId(-1))
