"""Programs sorted by age, for frequent queries for the oldest or the youngest ones.

Owns the order alone. Adding and discarding take logarithmic search time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from quire.control.programs.program import Program


class ByAge:
    """Programs by ``serial``."""

    __slots__ = ("_programs", "_serials")

    def __init__(self) -> None:
        self._serials: list[int] = []
        self._programs: dict[int, Program] = {}

    def __len__(self) -> int:
        return len(self._serials)

    def __contains__(self, program: Program) -> bool:
        return program.serial in self._programs

    def add(self, program: Program) -> None:
        if program.serial not in self._programs:
            self._programs[program.serial] = program
            insort(self._serials, program.serial)

    def discard(self, program: Program) -> None:
        if self._programs.pop(program.serial, None) is not None:
            del self._serials[bisect_left(self._serials, program.serial)]

    @property
    def oldest(self) -> Program | None:
        return self._programs[self._serials[0]] if self._serials else None

    def youngest_first(self) -> Iterator[Program]:
        return (self._programs[serial] for serial in reversed(self._serials))

    def check_invariants(self) -> None:
        assert self._serials == sorted(self._programs), "the order by age is wrong"
