"""The collection of one query in the node's vector store.

No other query and no other program can name it; it ends with the query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from quire.core.errors import QuireError
from quire.programs.api import Api

MAX_PUT, MAX_SEARCHED = 2048, 256
"""Rows, and vectors, of one call to the store."""
NO_ORDER: Mapping[str, Any] = MappingProxyType({})


class QueryVectors:
    """``add`` and ``nearest`` may run at the same time; a caller that needs an order awaits one
    before the other."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._name: str | None = None
        self._naming = asyncio.Lock()

    async def add(
        self,
        first: int,
        vectors: Sequence[Sequence[float]],
        texts: Sequence[str],
        order: Mapping[str, Any] = NO_ORDER,
    ) -> None:
        """Store rows with the numbers from ``first`` on; raise as ``Api.vectors_put`` does.
        ``order``: as ``Primitive.order``."""
        async with self._naming:
            self._name = self._name or await self._api.vectors_name()
        for start in range(0, len(texts), MAX_PUT):
            end = start + MAX_PUT
            await self._api.vectors_put(
                self._name, vectors[start:end], texts[start:end], first=first + start, **order
            )

    async def nearest(
        self, vectors: Sequence[Sequence[float]], num: int, order: Mapping[str, Any] = NO_ORDER
    ) -> list[list[str]]:
        """Return for each vector the texts of the ``num`` nearest rows, best first; none if nothing
        was stored. Raise as ``Api.vectors_search`` does."""
        if self._name is None:
            return [[] for _ in vectors]
        found: list[list[str]] = []
        for start in range(0, len(vectors), MAX_SEARCHED):
            part = vectors[start : start + MAX_SEARCHED]
            rows = await self._api.vectors_search(self._name, part, num, **order)
            found += [[row.text for row in one] for one in rows]
        return found

    async def close(self) -> None:
        """Drop the rows."""
        if self._name is not None:
            with suppress(QuireError):  # the program, with which they end, may have ended
                await self._api.vectors_drop(self._name)
