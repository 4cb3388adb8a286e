"""A collection of texts with vectors: the store's Protocol and the embedded default.

A query has a collection of its own, which no other query and no other tenant can name; it ends with
the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import InvalidArgument

MAX_ROWS = 1 << 17


class VectorCollection(Protocol):
    """The rows of one query. ``add`` and ``nearest`` may run at the same time; who needs an order
    awaits one before the other."""

    async def add(
        self, first: int, vectors: Sequence[Sequence[float]], texts: Sequence[str]
    ) -> None:
        """Store rows with the numbers from ``first`` on, which are new.

        Raises:
            InvalidArgument: a vector of another number of dimensions, or too many rows.
        """
        ...

    async def nearest(self, vector: Sequence[float], num: int) -> list[str]:
        """The texts of the ``num`` rows with the highest cosine similarity, best first; of equals
        the lowest number first."""
        ...

    def close(self) -> None:
        """Drop all rows."""
        ...


class ExactVectors:
    """Exact search over float32 rows in this process."""

    def __init__(self) -> None:
        self._rows: dict[int, NDArray[np.float32]] = {}
        self._texts: dict[int, str] = {}
        self._matrix: tuple[NDArray[np.float32], list[int]] | None = None
        """The rows in the order of their numbers, so that results do not depend on the order in
        which they came."""

    async def add(
        self, first: int, vectors: Sequence[Sequence[float]], texts: Sequence[str]
    ) -> None:
        if len(self._rows) + len(vectors) > MAX_ROWS:
            raise InvalidArgument(
                f"{len(self._rows) + len(vectors)} chunks; the embedded store holds {MAX_ROWS} of "
                "a query: raise chunk_size or give fewer documents"
            )
        for number, (vector, text) in enumerate(zip(vectors, texts, strict=True), first):
            row = self._checked(vector)
            length = float(np.linalg.norm(row.astype(np.float64)))
            self._rows[number] = row / np.float32(length) if length else row
            self._texts[number] = text
        self._matrix = None

    async def nearest(self, vector: Sequence[float], num: int) -> list[str]:
        if not self._rows:
            return []
        wanted = self._checked(vector)
        if self._matrix is None:
            numbers = sorted(self._rows)
            self._matrix = np.stack([self._rows[one] for one in numbers]), numbers
        rows_ND, numbers = self._matrix
        scores_N = rows_ND @ wanted
        best = np.argsort(-scores_N, kind="stable")[:num]
        return [self._texts[numbers[int(place)]] for place in best]

    def close(self) -> None:
        self._rows.clear()
        self._texts.clear()
        self._matrix = None

    def _checked(self, vector: Sequence[float]) -> NDArray[np.float32]:
        row = np.asarray(vector, np.float32)
        have = len(next(iter(self._rows.values()))) if self._rows else len(row)
        if len(row) != have:
            raise InvalidArgument(
                f"a vector has {len(row)} dimensions, those stored before have {have}: use one "
                "embedding model for ingestion and search"
            )
        return row
