"""Search in a ``LocalNode``: whatever engine a test gives it."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import TraitMissing
from quire.programs.search import SearchEngine, SearchResult
from quire.programs.services.encoding import CallOrder


class LocalSearch:
    """A ``FindTexts`` over one engine for all tenants, or none. ``orders``: the order that came
    with each request."""

    def __init__(self, engine: SearchEngine | None) -> None:
        self._engine = engine
        self.orders: list[CallOrder] = []

    async def engine(self) -> str | None:
        return None if self._engine is None else self._engine.name

    async def find(
        self, queries: Sequence[str], top_k: int, order: CallOrder
    ) -> list[list[SearchResult]]:
        if self._engine is None:
            raise TraitMissing("search: this node has no search engine: give LocalNode one")
        self.orders.append(order)
        return [await self._engine.search(query, top_k) for query in queries]

    def close(self) -> None:
        """Do nothing: nothing is held."""
