"""First come, first served: the command that was issued first runs first."""

from __future__ import annotations

from quire.control.policies.stateless import StatelessPolicy
from quire.core.policy import ReadyCommand


class FirstComeFirstServed(StatelessPolicy):
    """Ties go to the older program. All commands have one level: a running command is not displaced
    by one that came later, nor by one that came earlier and has lost its place."""

    @property
    def name(self) -> str:
        return "fcfs"

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (0, command.arrival_s, command.program, command.queue, command.command)
