"""``atlas``: attained service along the critical path, for programs of several threads."""

from __future__ import annotations

from quire.control.policies.levels import LevelQueues
from quire.core.policy import ReadyCommand


class ThreadAttainedService(LevelQueues):
    """A call begins in the queue of its program's longest critical path so far (Autellix 4.2.1,
    equation 2): a program with many short threads keeps its rank, one with a long chain of calls
    loses it. A launched program continues its parent's path."""

    @property
    def name(self) -> str:
        return "atlas"

    def attained(self, command: ReadyCommand) -> float:
        return self.amount(command.path_tokens, command.path_s)
