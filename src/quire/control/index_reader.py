"""The prefix indexes of engines as readers outside control follow them.

Owns what a reader receives of an engine: the life that its index belongs to, and how keys are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.control.engines.state import EngineState
from quire.control.memory.index_journal import IndexChanges
from quire.core.ids import EngineId, ModelId


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """How far a reader has read: the engine's life, and the number of a change in it."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class EngineIndex:
    """The changes of one engine's index. Keys of engines with equal ``content`` and ``page_size``
    mean the same tokens."""

    engine: EngineId
    model: ModelId
    epoch: int
    content: str
    page_size: int
    changes: IndexChanges

    @property
    def place(self) -> IndexPlace:
        return IndexPlace(self.epoch, self.changes.number)


def new_of_indexes(
    engines: Mapping[EngineId, EngineState], known: Mapping[EngineId, IndexPlace]
) -> tuple[EngineIndex, ...]:
    """The changes of each engine's index since its place in ``known``. The whole index is returned
    if there is no place, or if it is of another life or too old. Engines without changes are left
    out."""
    found = []
    for engine in engines.values():
        place = known.get(engine.id)
        since = None if place is None or place.epoch != engine.epoch else place.number
        changes = engine.memory.index.changes(since)
        if not changes.is_nothing:
            info = engine.info
            found.append(
                EngineIndex(
                    engine=engine.id,
                    model=engine.model,
                    epoch=engine.epoch,
                    content=info.content,
                    page_size=info.pool.page_size,
                    changes=changes,
                )
            )
    return tuple(found)
