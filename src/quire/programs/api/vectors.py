"""Trait Vectors: collections of texts with vectors, found by similarity. Served by the node."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.integers import call_order, whole_number
from quire.programs.api.packed_vectors import PackedVectors
from quire.programs.api.queued import TraitFunctions


@dataclass(frozen=True, slots=True)
class FoundText:
    """A row of a collection. ``score``: cosine similarity of its vector."""

    number: int
    score: float
    text: str


class VectorsFunctions(TraitFunctions):
    trait = Trait.VECTORS

    async def vectors_name(self) -> str:
        """A unique name for a collection of this program."""
        name: str = await self._issuer.ask("vectors.name")
        return name

    async def vectors_put(
        self,
        collection: str,
        vectors: Sequence[Sequence[float]],
        texts: Sequence[str],
        *,
        first: int = 0,
        shared: bool = False,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> None:
        """Store a row for each of ``texts`` with its vector. The rows have the numbers ``first``,
        ``first + 1``, ...; an existing row with such a number is replaced.

        A collection belongs to this program and ends with it; with ``shared`` it belongs to the
        programs of the tenant, stays, and the manifest names it among its ``stores``. The first
        rows create it and decide its dimensions. The node chooses where it is kept
        (``quire serve --vector-store``). ``thread``, ``depth`` and ``priority``: as of a queue
        (``create_queue``), ``invocation`` and ``remaining_us``: as of ``set_queue_depth``; they
        decide which of the requests that wait for the store is next.

        Raises:
            InvalidArgument: no rows, over 2048 rows or 4 Mi characters in one call, other
                dimensions than the rows before, over 131072 rows of a collection, or a name that is
                not printable text of at most 512 bytes.
            Forbidden: the manifest of this program does not name the collection.
            QuotaExceeded: too many collections, or rows in the memory of the node.
            EngineLost: the store cannot be reached now; a retry is safe.
        """
        values, dimensions = _flat("vectors_put", vectors)
        await self._issuer.ask(
            "vectors.put",
            collection=collection,
            shared=shared,
            first=whole_number("first", first),
            values=values,
            dimensions=dimensions,
            texts=list(texts),
            **call_order(thread, depth, priority, invocation, remaining_us),
        )

    async def vectors_search(
        self,
        collection: str,
        vectors: Sequence[Sequence[float]],
        num: int,
        *,
        shared: bool = False,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> list[list[FoundText]]:
        """Find the ``num`` rows (at most 1024) that are nearest to each of ``vectors`` (at most
        256) by cosine similarity, best first, of equals the lowest number first. ``thread``,
        ``depth``, ``priority``, ``invocation`` and ``remaining_us``: as for ``vectors_put``.

        Raises:
            UnknownHandle: there is no such collection: no rows were put into it, or it belongs to
                another program or tenant.
            InvalidArgument: other dimensions than its rows, or a number over its limit.
            Forbidden, EngineLost: as for ``vectors_put``.
        """
        values, dimensions = _flat("vectors_search", vectors)
        found: list[list[tuple[int, float, str]]] = await self._issuer.ask(
            "vectors.search",
            collection=collection,
            shared=shared,
            values=values,
            dimensions=dimensions,
            num=whole_number("num", num),
            **call_order(thread, depth, priority, invocation, remaining_us),
        )
        return [[FoundText(*row) for row in rows] for rows in found]

    async def vectors_drop(self, collection: str, *, shared: bool = False) -> bool:
        """Delete a collection; returns whether it existed."""
        dropped: bool = await self._issuer.ask("vectors.drop", collection=collection, shared=shared)
        return dropped

    async def vectors_list(self) -> list[str]:
        """The names of the tenant's shared collections that this program may use, sorted."""
        names: list[str] = await self._issuer.ask("vectors.list")
        return names


def _flat(function: str, vectors: Sequence[Sequence[float]]) -> tuple[bytes, int]:
    """The vectors as little-endian float32, row by row, and their dimensions."""
    if not vectors:
        raise InvalidArgument(f"{function}: no vectors: give at least one")
    if isinstance(vectors, PackedVectors):
        return vectors.values, vectors.dimensions
    dimensions = len(vectors[0])
    for index, vector in enumerate(vectors):
        if len(vector) != dimensions:
            raise InvalidArgument(
                f"{function}: vectors[{index}] has {len(vector)} dimensions, those before have "
                f"{dimensions}: use one embedding model"
            )
    row = struct.Struct(f"<{dimensions}f")
    try:
        return b"".join(row.pack(*vector) for vector in vectors), dimensions
    except (struct.error, OverflowError) as exc:
        raise InvalidArgument(f"{function}: vectors are lists of numbers ({exc})") from exc
