"""``VectorStore``: the interface of stores that keep collections of texts with vectors.

Owns the bounds and the errors that all stores have in common. Must not know whose request it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import InvalidArgument, QuotaExceeded, UnknownHandle
from quire.core.ids import ProgramId, TenantId

F32 = NDArray[np.float32]

MAX_ROWS = 1 << 17
"""The most rows of one collection."""
MAX_VALUES = 1 << 26
"""The most numbers in the vectors of one collection: 256 MiB."""
MAX_TENANT_DISK_BYTES = 16 << 30
"""The most disk of all collections of a tenant and of its programs, in a store on disk."""
MAX_COLLECTIONS = 256
"""The most collections of one tenant, and of one program."""


@dataclass(frozen=True, slots=True)
class CollectionPlace:
    """The place of a collection. ``program``: the program that it belongs to and ends with;
    ``None``: it belongs to the tenant and stays. ``name`` may be any text; a store never uses it as
    the name of a file or table."""

    tenant: TenantId
    program: ProgramId | None
    name: str


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Rows ``first``, ``first + 1``, ... ``vectors``: [rows, dimensions], each of length 1 or 0."""

    first: int
    vectors: F32
    texts: Sequence[str]

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.texts))

    @property
    def num_bytes(self) -> int:
        """Bytes of the vectors and of the texts in UTF-8."""
        return self.vectors.nbytes + sum(len(text.encode()) for text in self.texts)


class FoundRow(NamedTuple):
    """A row that was found; ``score``: cosine similarity."""

    number: int
    score: float
    text: str


class VectorStore(Protocol):
    """Keeps collections. Methods are for any loop and thread. Two calls may run at the same time; a
    caller that needs an order awaits one before the other. When a wait is cancelled, its call
    continues to its end."""

    @property
    def at_once(self) -> int:
        """The number of calls that may run side by side with a gain."""
        ...

    async def put(self, place: CollectionPlace, rows: VectorRows) -> None:
        """Add rows; a row with an existing number replaces it. The first rows create the
        collection.

        Raises:
            InvalidArgument: other dimensions than the existing rows, or too many rows.
            QuotaExceeded: the tenant or program has too many collections, or too many bytes.
            EngineLost: the store cannot be reached now.
        """
        ...

    async def search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        """Find the ``num`` rows with the highest scores for each of ``vectors``, best first, of
        equals the lowest number first; which of equals are left out is the store's choice. The
        search is exact: an index that may miss rows is never used.

        Raises:
            UnknownHandle: there is no such collection.
            InvalidArgument: other dimensions than its rows.
            EngineLost: the store cannot be reached now.
        """
        ...

    async def drop(self, place: CollectionPlace) -> bool:
        """Delete the collection; return whether it existed."""
        ...

    async def names(self, tenant: TenantId) -> list[str]:
        """The names of the collections that belong to the tenant, sorted."""
        ...

    def end(self, program: ProgramId) -> None:
        """Delete the collections of a program that has ended, now or soon."""
        ...

    def close(self) -> None:
        """Close the store. Blocks until all rows that were put are kept. Idempotent."""
        ...


def unit_vectors(values: bytes, dimensions: int) -> F32:
    """Vectors of length 1 from little-endian float32, row by row; a vector of zeros stays.

    Raises:
        InvalidArgument: no whole number of vectors, or a value that is not finite.
    """
    if dimensions < 1 or not values or len(values) % (4 * dimensions):
        raise InvalidArgument(
            f"{len(values)} bytes are no vectors of {dimensions} float32: give vectors of one size"
        )
    rows_ND = np.frombuffer(values, "<f4").reshape(-1, dimensions)
    if not np.isfinite(rows_ND).all():
        raise InvalidArgument("a vector has a value that is not finite: give numbers alone")
    lengths_N1 = np.linalg.norm(rows_ND.astype(np.float64), axis=1, keepdims=True)
    return (rows_ND / np.where(lengths_N1 > 0, lengths_N1, 1)).astype(np.float32)


def check_dimensions(place: CollectionPlace, given: int, have: int) -> None:
    """Raise ``InvalidArgument`` unless new vectors have the dimensions of the existing ones."""
    if given != have:
        raise InvalidArgument(
            f"collection {place.name!r}: a vector has {given} dimensions, those stored before have "
            f"{have}: use one embedding model for ingestion and search"
        )


def check_room(place: CollectionPlace, num_rows: int, dimensions: int) -> None:
    """Raise ``InvalidArgument`` if a collection cannot have ``num_rows``."""
    most = min(MAX_ROWS, MAX_VALUES // dimensions)
    if num_rows > most:
        raise InvalidArgument(
            f"collection {place.name!r} would have {num_rows} rows of {dimensions} dimensions; at "
            f"most {most} are stored: raise chunk_size or give fewer documents"
        )


def check_number(place: CollectionPlace, num_collections: int) -> None:
    """Raise ``QuotaExceeded`` if there is no room for another collection beside
    ``num_collections``."""
    if num_collections >= MAX_COLLECTIONS:
        whose = "tenant" if place.program is None else "program"
        raise QuotaExceeded(
            f"this {whose} has {num_collections} collections of vectors; at most {MAX_COLLECTIONS} "
            "are allowed: drop one first",
            max_collections=MAX_COLLECTIONS,
        )


def check_disk(num_bytes: int, rows: VectorRows) -> None:
    """Raise ``QuotaExceeded`` if a tenant whose collections take ``num_bytes`` of disk has no room
    for ``rows``. Rows that replace others need room beside them."""
    total = num_bytes + rows.num_bytes
    if total > MAX_TENANT_DISK_BYTES:
        raise QuotaExceeded(
            f"the collections of vectors of this tenant would have {total} bytes on disk; at most "
            f"{MAX_TENANT_DISK_BYTES} are allowed: drop some, or wait for programs to end",
            max_bytes=MAX_TENANT_DISK_BYTES,
        )


def unknown(place: CollectionPlace) -> UnknownHandle:
    """The error of a search in a collection without rows."""
    whose = "tenant" if place.program is None else "program"
    return UnknownHandle(
        f"this {whose} has no collection of vectors {place.name!r}: put rows into it first"
    )
