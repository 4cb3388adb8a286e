"""``program_fcfs``: first come, first served over programs instead of calls."""

from __future__ import annotations

from quire.control.policies.stateless import StatelessPolicy
from quire.core.policy import ReadyCommand


class ProgramFirstComeFirstServed(StatelessPolicy):
    """The calls of the oldest family go first, whenever they arrive. A call that runs is not
    displaced. A long program holds up all programs that came after it, so this policy is good when
    programs are about equally long."""

    @property
    def name(self) -> str:
        return "program_fcfs"

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        family = command.family_figures
        return (0, family.arrival_s, command.program, command.queue, command.command)
