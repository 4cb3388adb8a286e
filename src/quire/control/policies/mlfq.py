"""``mlfq``: a multi-level feedback queue over calls, which knows nothing of programs."""

from __future__ import annotations

from quire.control.policies.levels import LevelQueues
from quire.core.policy import ReadyCommand


class MultiLevelFeedback(LevelQueues):
    """Each call begins in the first queue (Autellix 3.1)."""

    @property
    def name(self) -> str:
        return "mlfq"

    def attained(self, command: ReadyCommand) -> float:
        return 0.0
