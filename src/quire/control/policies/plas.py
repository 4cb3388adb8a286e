"""``plas``: program-level attained service. The less a program was served, the sooner it runs."""

from __future__ import annotations

from quire.control.policies.levels import LevelQueues
from quire.core.policy import ReadyCommand


class ProgramAttainedService(LevelQueues):
    """A call begins in the queue that fits the whole service of its family (Autellix 4.2.1,
    equation 1). Calls of several threads count together, and so do launched programs."""

    @property
    def name(self) -> str:
        return "plas"

    def attained(self, command: ReadyCommand) -> float:
        family = command.family_figures
        return self.amount(family.service_tokens, family.service_s)
