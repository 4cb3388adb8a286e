"""Simulated runs are played in several processes, which inherit what they are given."""

from __future__ import annotations

from benchmarks.autellix.playing import in_processes


class _NotPickled:
    """As compiled frozen classes are: it can be inherited, but not sent."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


def _double(given: _NotPickled) -> int:
    return 2 * given.number


def test_processes_inherit_what_cannot_be_pickled() -> None:
    given = [_NotPickled(number) for number in (3, 1, 2)]
    assert dict(in_processes(_double, given, 2)) == {0: 6, 1: 2, 2: 4}
