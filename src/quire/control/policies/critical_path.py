"""``critical_path``: of each program the command with the longest way to the result; oldest
first."""

from __future__ import annotations

from quire.control.policies.stateless import StatelessPolicy
from quire.core.policy import ReadyCommand

MAX_HEAD_START_S = 60.0
"""The most by which a query's age may count: a program that never ends must not go first for
ever."""


class LongestRemaining(StatelessPolicy):
    """As ``topology``, but by time instead of hops: a message takes of each program the command
    after which the most time remains by its engines' profiles. Commands without a profile go by
    their depth, behind the others. Programs are ordered by their begin, so that a query that has
    almost ended does not wait behind each step of those that came later. A command that serves no
    step of a graph counts from its own arrival. Nothing that runs is displaced."""

    @property
    def name(self) -> str:
        return "critical_path"

    def key(self, command: ReadyCommand) -> tuple[float, ...]:
        since_s = command.arrival_s
        if command.remaining_us > 0 or command.invocation > 0:
            since_s = max(command.program_figures.arrival_s, since_s - MAX_HEAD_START_S)
        return (0, since_s, command.arrival_s, command.program, command.queue, command.command)

    def stage(self, command: ReadyCommand) -> float:
        return -float(command.remaining_us if command.remaining_us > 0 else command.depth)
