"""Which programs have queues on which engine: those that end when the engine is given up."""

from __future__ import annotations

from quire.core.events import Event, ProgramEnded, QueueCreated
from quire.core.ids import EngineId, ProgramId


class EngineUsers:
    """Follows the event stream. A program stays a user until it ends."""

    def __init__(self) -> None:
        self._users: dict[EngineId, set[ProgramId]] = {}

    def follow(self, event: Event) -> None:
        if isinstance(event, QueueCreated):
            self._users.setdefault(event.engine, set()).add(event.program)
        elif isinstance(event, ProgramEnded):
            self.forget(event.program)

    def forget(self, program: ProgramId) -> None:
        for programs in self._users.values():
            programs.discard(program)

    def of(self, engine: EngineId) -> list[ProgramId]:
        """Oldest first."""
        return sorted(self._users.get(engine, ()))


__all__ = ["EngineUsers"]
