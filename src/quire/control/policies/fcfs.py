"""First come, first served: the command that was issued first runs first."""

from __future__ import annotations

from quire.core.ids import ProgramId
from quire.core.interfaces import ReadyCommand


class FirstComeFirstServed:
    """Keeps no state; ties go to the older program."""

    @property
    def name(self) -> str:
        return "fcfs"

    @property
    def counts_service(self) -> bool:
        return False

    def key(self, command: ReadyCommand, now_s: float) -> tuple[float, ...]:
        return (command.arrival_s, command.program, command.queue, command.command)

    def on_served(self, command: ReadyCommand, num_tokens: int, now_s: float) -> None:
        pass

    def on_program_ended(self, program: ProgramId) -> None:
        pass


__all__ = ["FirstComeFirstServed"]
