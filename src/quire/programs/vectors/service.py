"""One program's access to the vector store of its node: under its tenant and its capabilities, and
when it is its turn.

Owns the bounds of one request.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from quire.core.errors import InvalidArgument
from quire.core.ids import ThreadId
from quire.programs.services.encoding import CallOrder
from quire.programs.services.names import check_name
from quire.programs.services.operations import Identity, ProgramService, operation
from quire.programs.services.turns import FreeTurns, ProgramTurns
from quire.programs.vectors.store import CollectionPlace, VectorRows, VectorStore, unit_vectors

MAX_TEXTS = 2048
MAX_CHARS = 4 << 20
MAX_DIMENSIONS = 8192
MAX_QUERIES = 256
MAX_FOUND = 1024
"""The most rows that are found for each vector of a request."""


class VectorService(ProgramService):
    """The collections of one program and its tenant. Those of the program end with it; those of its
    tenant stay."""

    def __init__(
        self, identity: Identity, store: VectorStore, turns: ProgramTurns | None = None
    ) -> None:
        self._identity = identity
        self._store = store
        self._turns = turns or FreeTurns()
        self._numbers = itertools.count(1)
        self._has_own = self._has_ended = False

    @operation("vectors.name")
    async def name(self) -> str:
        return f"collection {next(self._numbers)}"

    @operation("vectors.put")
    async def put(
        self,
        collection: str,
        shared: bool,
        first: int,
        values: bytes,
        dimensions: int,
        texts: list[str],
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> None:
        place = self._place(collection, shared)
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidArgument(
                f"vectors_put: {len(texts)} rows; give 1 to {MAX_TEXTS} in one call"
            )
        num_chars = sum(map(len, texts))
        if num_chars > MAX_CHARS:
            raise InvalidArgument(
                f"vectors_put: {num_chars} characters; at most {MAX_CHARS} are allowed in one "
                "call: put them in parts"
            )
        if not 0 <= first < 1 << 53:
            raise InvalidArgument(f"vectors_put: first is {first}: give 0 or more")
        _check_dimensions("vectors_put", dimensions)
        rows = await asyncio.to_thread(_checked_rows, first, values, dimensions, texts)
        self._has_own = self._has_own or not shared
        order = CallOrder(ThreadId(thread), depth, priority, invocation, remaining_us)
        async with self._turns.turn(order):
            putting = asyncio.ensure_future(self._store.put(place, rows))
            putting.add_done_callback(self._note_put)
            await asyncio.shield(putting)

    @operation("vectors.search")
    async def search(
        self,
        collection: str,
        shared: bool,
        values: bytes,
        dimensions: int,
        num: int,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> list[list[tuple[int, float, str]]]:
        place = self._place(collection, shared)
        if not 1 <= num <= MAX_FOUND:
            raise InvalidArgument(f"vectors_search: num is {num}: give 1 to {MAX_FOUND}")
        _check_dimensions("vectors_search", dimensions)
        vectors = await asyncio.to_thread(unit_vectors, values, dimensions)
        if len(vectors) > MAX_QUERIES:
            raise InvalidArgument(
                f"vectors_search: {len(vectors)} vectors; give 1 to {MAX_QUERIES} in one call"
            )
        order = CallOrder(ThreadId(thread), depth, priority, invocation, remaining_us)
        async with self._turns.turn(order):
            found = await self._store.search(place, vectors, num)
        return [[(row.number, row.score, row.text) for row in rows] for rows in found]

    @operation("vectors.drop")
    async def drop(self, collection: str, shared: bool) -> bool:
        return await self._store.drop(self._place(collection, shared))

    @operation("vectors.list")
    async def names(self) -> list[str]:
        names = await self._store.names(self._identity.tenant)
        return [name for name in names if self._identity.capabilities.allows_store(name)]

    def close(self) -> None:
        self._has_ended = True
        self._turns.end()
        if self._has_own:
            self._store.end(self._identity.program)

    def _note_put(self, putting: asyncio.Future[None]) -> None:
        """Delete again what a program has stored that ended meanwhile: the store goes on with a
        call whose program does not wait for it any more."""
        if not putting.cancelled():
            putting.exception()  # else asyncio logs the error of a call for which nobody waits
        if self._has_ended and self._has_own:
            self._store.end(self._identity.program)

    def _place(self, collection: str, shared: bool) -> CollectionPlace:
        check_name("collection", collection)
        if shared:
            self._identity.capabilities.check_store(collection)
        return CollectionPlace(
            self._identity.tenant, None if shared else self._identity.program, collection
        )


def _check_dimensions(function: str, dimensions: Any) -> None:
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise InvalidArgument(
            f"{function}: vectors of {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are stored"
        )


def _checked_rows(first: int, values: bytes, dimensions: int, texts: list[str]) -> VectorRows:
    """The rows of ``vectors_put``, made and checked in a thread: they may be megabytes."""
    vectors = unit_vectors(values, dimensions)
    if len(vectors) != len(texts):
        raise InvalidArgument(
            f"vectors_put: {len(vectors)} vectors for {len(texts)} texts: give one for each"
        )
    for index, text in enumerate(texts):
        if "\0" in text or not _is_text(text):
            raise InvalidArgument(
                f"vectors_put: texts[{index}] has a character that cannot be stored (NUL, or half "
                "of a surrogate pair): remove it"
            )
    return VectorRows(first, vectors, texts)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
