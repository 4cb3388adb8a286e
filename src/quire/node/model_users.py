"""Which programs have queues for which model. They are ended when the model is given up."""

from __future__ import annotations

from quire.core.ids import ModelId, ProgramId


class ModelUsers:
    """A program stays a user until it ends."""

    def __init__(self) -> None:
        self._users: dict[ModelId, set[ProgramId]] = {}

    def add(self, model: ModelId, program: ProgramId) -> None:
        self._users.setdefault(model, set()).add(program)

    def forget(self, program: ProgramId) -> None:
        for programs in self._users.values():
            programs.discard(program)

    def of(self, model: ModelId) -> list[ProgramId]:
        """Oldest first."""
        return sorted(self._users.get(model, ()))
