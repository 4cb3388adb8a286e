"""``ExactStore``: collections in the memory of this process, searched row by row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np

from quire.core.ids import ProgramId, TenantId
from quire.programs.vectors.store import (
    F32,
    CollectionPlace,
    FoundRow,
    VectorRows,
    check_dimensions,
    check_number,
    check_room,
    unknown,
)


class _Collection:
    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.vectors: dict[int, F32] = {}
        self.texts: dict[int, str] = {}
        self.matrix: tuple[F32, list[int]] | None = None
        """The rows in the order of their numbers, so that results do not depend on the order in
        which they came."""

    def rows(self) -> tuple[F32, list[int]]:
        if self.matrix is None:
            numbers = sorted(self.vectors)
            self.matrix = np.stack([self.vectors[one] for one in numbers]), numbers
        return self.matrix


class ExactStore:
    """See ``VectorStore``. Everything is lost with the process."""

    at_once = 1  # the lock is held while it searches

    def __init__(self) -> None:
        self._collections: dict[CollectionPlace, _Collection] = {}
        self._lock = threading.Lock()

    async def put(self, place: CollectionPlace, rows: VectorRows) -> None:
        await asyncio.to_thread(self._put, place, rows)

    async def search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        return await asyncio.to_thread(self._search, place, vectors, num)

    async def drop(self, place: CollectionPlace) -> bool:
        with self._lock:
            return self._collections.pop(place, None) is not None

    async def names(self, tenant: TenantId) -> list[str]:
        with self._lock:
            places = list(self._collections)
        return sorted(one.name for one in places if one.program is None and one.tenant == tenant)

    def end(self, program: ProgramId) -> None:
        with self._lock:
            for place in [one for one in self._collections if one.program == program]:
                del self._collections[place]

    def close(self) -> None:
        with self._lock:
            self._collections.clear()

    def _put(self, place: CollectionPlace, rows: VectorRows) -> None:
        with self._lock:
            dimensions = rows.vectors.shape[1]
            collection = self._collections.get(place)
            if collection is None:
                owner = (place.tenant, place.program)
                others = [x for x in self._collections if (x.tenant, x.program) == owner]
                check_number(place, len(others))
                collection = _Collection(dimensions)
            check_dimensions(place, dimensions, collection.dimensions)
            check_room(place, len(collection.vectors.keys() | set(rows.numbers)), dimensions)
            collection.vectors.update(zip(rows.numbers, rows.vectors, strict=True))
            collection.texts.update(zip(rows.numbers, rows.texts, strict=True))
            collection.matrix = None
            self._collections[place] = collection

    def _search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        with self._lock:
            collection = self._collections.get(place)
            if collection is None:
                raise unknown(place)
            check_dimensions(place, vectors.shape[1], collection.dimensions)
            rows_ND, numbers = collection.rows()
            texts = collection.texts
            return [_nearest(rows_ND @ vector_D, numbers, texts, num) for vector_D in vectors]


def _nearest(
    scores_N: F32, numbers: Sequence[int], texts: dict[int, str], num: int
) -> list[FoundRow]:
    best = np.argsort(-scores_N, kind="stable")[:num]
    return [
        FoundRow(numbers[place], float(scores_N[place]), texts[numbers[place]])
        for place in map(int, best)
    ]
