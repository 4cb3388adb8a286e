"""Deployments: which engines serve a model, and which of them a queue is placed on.

Owns the list of each model's engines and the choice between them. A queue names a model; its first
command places it, inside control, so that a replay and a simulation see the same choice. Pages go
with the queue that they were allocated on, and commands of other queues may name them: as long as a
program has a queue for a model on an engine, its next ones for that model go to the same one.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.programs.program import CommandQueue
from quire.core.ids import EngineId, ModelId


class Deployments:
    """The engines of each model, in the order in which they came up first."""

    def __init__(self) -> None:
        self._engines: dict[ModelId, list[EngineState]] = {}

    def add(self, engine: EngineState) -> None:
        """``engine`` is up for the first time."""
        self._engines.setdefault(engine.model, []).append(engine)

    def choose(self, queue: CommandQueue) -> EngineState | None:
        """The engine for ``queue``, whose first command has come; None: the model has none.

        Of several, the one where its program is at home already; else one that is up, with the
        fewest queues that wait or run, the first of equals.
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
    """Where the queue's program has another queue for the same model, and so what that holds."""
    for other in queue.program.queues.values():
        if other.model == queue.model and other.placed_on is not None:
            return other.placed_on
    return None


def _load(engine: EngineState) -> int:
    return len(engine.ready) + len(engine.unfinished) + len(engine.running)
