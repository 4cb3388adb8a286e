"""First come, first served: the command that was issued first runs first."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.ids import ProgramId
from quire.core.interfaces import ReadyCommand


class FirstComeFirstServed:
    """Keeps no state; ties go to the older program. All commands have one level: what runs is not
    displaced by what came later, nor by what came before it and has lost its place."""

    @property
    def name(self) -> str:
        return "fcfs"

    @property
    def keeps_state(self) -> bool:
        return False

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (0, command.arrival_s, command.program, command.queue, command.command)

    def on_arrival(self, command: ReadyCommand, now_s: float) -> None:
        pass

    def on_served(
        self, command: ReadyCommand, num_tokens: int, service_s: float, now_s: float
    ) -> None:
        pass

    def on_ended(self, command: ReadyCommand, now_s: float) -> None:
        pass

    def on_program_ended(self, program: ProgramId, now_s: float) -> None:
        pass

    def on_capacity(self, num_sequences: int) -> None:
        pass

    def on_time(self, now_s: float) -> Sequence[ReadyCommand]:
        return ()
