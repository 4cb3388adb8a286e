"""``ExactStore``: collections in the memory of this process, searched row by row."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from quire.core.errors import QuotaExceeded
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

MAX_TENANT_BYTES = 2 << 30
"""The most memory of all collections of a tenant and of its programs."""
_ROW_BYTES = 256
"""Bytes of the tables for one row."""


class _Collection:
    """``lock`` guards the rows; a search holds it only while it takes them. ``num_bytes``: what is
    counted of them."""

    def __init__(self, dimensions: int) -> None:
        self.lock = threading.Lock()
        self.dimensions = dimensions
        self.num_bytes = 0
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
                vectors = [self.vectors[one] for one in numbers]
                shape = len(numbers), self.dimensions
                matrix_ND = np.array(vectors, np.float32).reshape(shape)  # it may have no rows yet
                self.matrix = matrix_ND, numbers, texts
            return self.matrix

    def put(self, place: CollectionPlace, rows: VectorRows, count: Callable[[int], None]) -> None:
        """``count`` is called with the bytes that are added, and may refuse them."""
        with self.lock:
            check_room(place, len(self.vectors.keys() | set(rows.numbers)), self.dimensions)
            replaced = [self.texts[one] for one in rows.numbers if one in self.texts]
            count(self._num_bytes(rows.texts) - self._num_bytes(replaced))
            self.vectors.update(zip(rows.numbers, rows.vectors, strict=True))
            self.texts.update(zip(rows.numbers, rows.texts, strict=True))
            self.matrix = None

    def _num_bytes(self, texts: Sequence[str]) -> int:
        """Bytes of rows with these texts; a search copies their vectors."""
        each = 2 * 4 * self.dimensions + _ROW_BYTES
        return len(texts) * each + sum(map(sys.getsizeof, texts))


class ExactStore:
    """See ``VectorStore``. Everything is lost with the process.

    ``drop``, ``names`` and ``end`` are called on loops that all programs share, so the lock that
    they need is never held for work on rows."""

    at_once = 1  # numpy's products use all cores already

    def __init__(self) -> None:
        self._collections: dict[CollectionPlace, _Collection] = {}
        self._num_bytes = Counter[TenantId]()
        self._lock = threading.Lock()

    async def put(self, place: CollectionPlace, rows: VectorRows) -> None:
        await asyncio.to_thread(self._put, place, rows)

    async def search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        return await asyncio.to_thread(self._search, place, vectors, num)

    async def drop(self, place: CollectionPlace) -> bool:
        with self._lock:
            return self._removed(place)

    async def names(self, tenant: TenantId) -> list[str]:
        with self._lock:
            places = list(self._collections)
        return sorted(one.name for one in places if one.program is None and one.tenant == tenant)

    def end(self, program: ProgramId) -> None:
        with self._lock:
            for place in [one for one in self._collections if one.program == program]:
                self._removed(place)

    def close(self) -> None:
        with self._lock:
            self._collections.clear()
            self._num_bytes.clear()

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
        collection.put(place, rows, lambda num_bytes: self._count(place, collection, num_bytes))

    def _count(self, place: CollectionPlace, collection: _Collection, num_bytes: int) -> None:
        """Count bytes that are added to a collection, unless it was dropped meanwhile.

        Raises:
            QuotaExceeded: its tenant would have too many.
        """
        with self._lock:
            if self._collections.get(place) is not collection:
                return
            total = self._num_bytes[place.tenant] + num_bytes
            if num_bytes > 0 and total > MAX_TENANT_BYTES:
                raise QuotaExceeded(
                    f"the collections of vectors of this tenant would have {total} bytes in the "
                    f"node's memory; at most {MAX_TENANT_BYTES} are allowed: drop some, wait for "
                    "programs to end, or have the operator choose another --vector-store",
                    max_bytes=MAX_TENANT_BYTES,
                )
            self._num_bytes[place.tenant] = total
            collection.num_bytes += num_bytes

    def _removed(self, place: CollectionPlace) -> bool:
        """Remove a collection; return whether it existed. The caller holds the lock."""
        collection = self._collections.pop(place, None)
        if collection is None:
            return False
        self._num_bytes[place.tenant] -= collection.num_bytes
        if not self._num_bytes[place.tenant]:
            del self._num_bytes[place.tenant]
        return True

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
