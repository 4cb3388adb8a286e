"""Deployments: the engines that serve each model, and the placement of queues on them.

Owns the list of each model's engines and the choice between them. A queue names a model; control
places it when its first command arrives, so that a replay and a simulation see the same choice. A
program's commands may name pages that were allocated on another of its queues, so all of its queues
for a model are placed on one engine as long as it has any.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.programs.program import CommandQueue
from quire.core.ids import EngineId, ModelId


class Deployments:
    """The engines of each model, in the order in which they first came up."""

    def __init__(self) -> None:
        self._engines: dict[ModelId, list[EngineState]] = {}

    def add(self, engine: EngineState) -> None:
        """``engine`` is up for the first time."""
        self._engines.setdefault(engine.model, []).append(engine)

    def choose(self, queue: CommandQueue) -> EngineState | None:
        """The engine for ``queue``, whose first command has arrived; None if the model has no
        engine.

        Of several engines, the one that has a queue of the same program for the model; else one
        that is up, with the fewest queues and commands, the first of equals.
        """
        engines = self._engines.get(queue.model, [])
        if len(engines) <= 1:
            return engines[0] if engines else None
        home = _home(queue)
        for engine in engines:
            if engine.id == home:
                return engine
        return min(engines, key=lambda engine: (not engine.is_up, _load(engine)))


def _home(queue: CommandQueue) -> EngineId | None:
    """The engine of another queue of the same program for the same model, and so of its pages."""
    for other in queue.program.queues.values():
        if other.model == queue.model and other.placed_on is not None:
            return other.placed_on
    return None


def _load(engine: EngineState) -> int:
    return len(engine.ready) + len(engine.unfinished) + len(engine.running)
