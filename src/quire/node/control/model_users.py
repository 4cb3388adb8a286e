"""Which programs have queues for which model, and which models will not come back.

Programs are ended when the last engine of their model is given up, and when they create a queue for
a model that is given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from quire.core.errors import ErrorRecord
from quire.core.ids import ModelId, ProgramId


class ModelUsers:
    """The users of each model; a program stays one until it ends. ``replicas``: the number of
    engines of each model of the node. Others are not noted: programs may name any."""

    def __init__(self, replicas: Mapping[ModelId, int]) -> None:
        self._replicas = replicas
        self._users: dict[ModelId, set[ProgramId]] = {model: set() for model in replicas}
        self._num_given_up: Counter[ModelId] = Counter()
        self._given_up: dict[ModelId, ErrorRecord] = {}

    def add(self, model: ModelId, program: ProgramId) -> ErrorRecord | None:
        """Note that ``program`` has a queue for ``model``. Return why the model is given up, if it
        is."""
        users = self._users.get(model)
        if users is not None:
            users.add(program)
        return self._given_up.get(model)

    def forget(self, program: ProgramId) -> None:
        for programs in self._users.values():
            programs.discard(program)

    def give_up_engine(self, model: ModelId, error: ErrorRecord) -> list[ProgramId] | None:
        """Note that one engine of ``model`` will not come back. Return the programs that would wait
        for ever if it was the last one, oldest first; ``None`` if others remain."""
        self._num_given_up[model] += 1
        if self._num_given_up[model] < self._replicas.get(model, 1):
            return None
        self._given_up[model] = error
        return sorted(self._users.get(model, ()))
