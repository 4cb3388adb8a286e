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
    """``lock`` guards the rows; a search holds it only while it takes them."""

    def __init__(self, dimensions: int) -> None:
        self.lock = threading.Lock()
        self.dimensions = dimensions
        self.vectors: dict[int, F32] = {}
        self.texts: dict[int, str] = {}
        self.matrix: tuple[F32, list[int], list[str]] | None = None
        """The rows in the order of their numbers, so that results do not depend on the order in
        which they came."""

    def rows(self) -> tuple[F32, list[int], list[str]]:
        """Return vectors [N, D], numbers and texts, which nobody changes any more."""
        with self.lock:
            if self.matrix is None:
                numbers = sorted(self.vectors)
                texts = [self.texts[one] for one in numbers]
                self.matrix = np.stack([self.vectors[one] for one in numbers]), numbers, texts
            return self.matrix

    def put(self, place: CollectionPlace, rows: VectorRows) -> None:
        with self.lock:
            check_room(place, len(self.vectors.keys() | set(rows.numbers)), self.dimensions)
            self.vectors.update(zip(rows.numbers, rows.vectors, strict=True))
            self.texts.update(zip(rows.numbers, rows.texts, strict=True))
            self.matrix = None


class ExactStore:
    """See ``VectorStore``. Everything is lost with the process.

    ``drop``, ``names`` and ``end`` are called on loops that all programs share, so the lock that
    they need is never held for work on rows."""

    at_once = 1  # numpy's products use all cores already

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
                check_room(place, len(rows.texts), dimensions)
                collection = self._collections[place] = _Collection(dimensions)
        check_dimensions(place, dimensions, collection.dimensions)
        collection.put(place, rows)

    def _search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        with self._lock:
            collection = self._collections.get(place)
        if collection is None:
            raise unknown(place)
        check_dimensions(place, vectors.shape[1], collection.dimensions)
        rows_ND, numbers, texts = collection.rows()
        return [_nearest(rows_ND @ vector_D, numbers, texts, num) for vector_D in vectors]


def _nearest(
    scores_N: F32, numbers: Sequence[int], texts: Sequence[str], num: int
) -> list[FoundRow]:
    best = np.argsort(-scores_N, kind="stable")[:num]
    return [
        FoundRow(numbers[place], float(scores_N[place]), texts[place]) for place in map(int, best)
    ]
