"""Which programs have queues for which model: those that end when the model is given up."""

from __future__ import annotations

from quire.core.events import Event, ProgramEnded, QueueCreated
from quire.core.ids import ModelId, ProgramId


class ModelUsers:
    """Follows the event stream. A program stays a user until it ends."""

    def __init__(self) -> None:
        self._users: dict[ModelId, set[ProgramId]] = {}

    def follow(self, event: Event) -> None:
        if isinstance(event, QueueCreated):
            self._users.setdefault(event.model, set()).add(event.program)
        elif isinstance(event, ProgramEnded):
            self.forget(event.program)

    def forget(self, program: ProgramId) -> None:
        for programs in self._users.values():
            programs.discard(program)

    def of(self, model: ModelId) -> list[ProgramId]:
        """Oldest first."""
        return sorted(self._users.get(model, ()))
