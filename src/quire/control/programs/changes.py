"""Records which programs have changed since when.

Owns a number for each program's last change, in their order, and the newest ends. Code that changes
a program touches it; numbers are given at a look, so that a change which is never read costs next
to nothing. Must not know what a change is, nor its readers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from quire.control.programs.program import Program
from quire.core.ids import ProgramId, TenantId

MAX_ENDED = 4096
"""The number of ends that are remembered; a reader that has missed more begins anew."""


@dataclass(frozen=True, slots=True)
class EndRecord:
    number: int
    program: ProgramId
    tenant: TenantId


class Changes:
    """The changes. ``number``: that of the newest change; the first is 1. ``forgotten``: that of
    the newest end that is no longer known."""

    def __init__(self, max_ended: int = MAX_ENDED) -> None:
        self._max_ended = max_ended
        self._touched: dict[ProgramId, Program] = {}
        self._numbers: OrderedDict[ProgramId, tuple[int, Program]] = OrderedDict()
        self._ended: deque[EndRecord] = deque()
        self.number = 0
        self.forgotten = 0

    def touch(self, program: Program) -> None:
        """Note that ``program``, which lives, has changed."""
        self._touched[program.id] = program

    def end(self, program: Program) -> None:
        """Note that ``program`` has ended. One without a number was never in an answer."""
        self._touched.pop(program.id, None)
        if self._numbers.pop(program.id, None) is None:
            return
        self.number += 1
        self._ended.append(EndRecord(self.number, program.id, program.tenant))
        if len(self._ended) > self._max_ended:
            self.forgotten = self._ended.popleft().number

    def give_numbers(self) -> None:
        """Number the programs that were touched since the last call."""
        for program in self._touched.values():
            self.number += 1
            self._numbers[program.id] = (self.number, program)
            self._numbers.move_to_end(program.id)
        self._touched.clear()

    def since(self, number: int) -> list[tuple[int, Program]]:
        """Living programs whose last change has a higher number, in the order of these changes.
        Takes time in proportion to their number."""
        found = []
        for change in reversed(self._numbers.values()):
            if change[0] <= number:
                break
            found.append(change)
        found.reverse()
        return found

    def ended_since(self, number: int) -> list[EndRecord]:
        """Ends with a higher number, in their order."""
        found = []
        for end in reversed(self._ended):
            if end.number <= number:
                break
            found.append(end)
        found.reverse()
        return found

    def check_invariants(self, programs: Mapping[ProgramId, Program]) -> None:
        numbers = [number for number, _ in self._numbers.values()]
        assert numbers == sorted(set(numbers)), "changes are not in their order"
        assert programs.keys() == self._numbers.keys() | self._touched.keys()
        assert len(self._ended) <= self._max_ended
