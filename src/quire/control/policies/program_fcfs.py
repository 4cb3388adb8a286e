"""``program_fcfs``: first come, first served over programs instead of calls."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.ids import ProgramId
from quire.core.interfaces import ReadyCommand


class ProgramFirstComeFirstServed:
    """The calls of the oldest family go first, whenever they come; a call that runs is not
    displaced. Long programs hold up all that came after them: the bound that least attained service
    is compared with where programs are about equally long."""

    @property
    def name(self) -> str:
        return "program_fcfs"

    @property
    def keeps_state(self) -> bool:
        return False

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        family = command.family_figures
        return (0, family.arrival_s, command.program, command.queue, command.command)

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
