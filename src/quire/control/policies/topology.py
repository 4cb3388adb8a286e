"""``topology``: of each program the deepest step of its graph that waits (Ayo's Algorithm 2)."""

from __future__ import annotations

from quire.control.policies.stateless import StatelessPolicy
from quire.core.policy import ReadyCommand


class DeepestFirst(StatelessPolicy):
    """A message takes of each program the commands at its greatest depth, in the order of each
    program's first command, and then those at their next depths. A program without a graph is at
    depth 0 throughout and has its turn by arrival, as under ``fcfs``. Nothing that runs is
    displaced."""

    @property
    def name(self) -> str:
        return "topology"

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        return (0, command.arrival_s, command.program, command.queue, command.command)

    def stage(self, command: ReadyCommand) -> float:
        return -float(command.depth)
