"""The node's search engines for programs: what ``SearchService`` asks, on the edge's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from quire.core.errors import TraitMissing
from quire.node.encoders.programs import OnEdge
from quire.node.search.engines import SearchEngines
from quire.programs.search import SearchResult
from quire.programs.services.encoding import CallOrder
from quire.programs.services.operations import Identity


class ProgramSearch:
    """``FindTexts`` of one program."""

    def __init__(self, identity: Identity, engines: SearchEngines, on_edge: OnEdge) -> None:
        self._identity = identity
        self._engines = engines
        self._on_edge = on_edge

    async def engine(self) -> str | None:
        try:
            return self._engines.of(self._identity.tenant)[0].name
        except TraitMissing:
            return None

    async def find(
        self, queries: Sequence[str], top_k: int, order: CallOrder
    ) -> list[list[SearchResult]]:
        found: list[list[SearchResult]] = await self._on_edge(self._find(queries, top_k, order))
        return found

    async def _find(
        self, queries: Sequence[str], top_k: int, order: CallOrder
    ) -> list[list[SearchResult]]:
        """Run the queries, each with its own turn, so that many of them do not delay others."""
        engine, turns = self._engines.of(self._identity.tenant)

        async def searched(query: str) -> list[SearchResult]:
            async with turns.turn(self._identity, order):
                return await engine.search(query, top_k)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(searched(query)) for query in queries]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others have been cancelled
        return [task.result() for task in tasks]

    def close(self) -> None:
        with suppress(TraitMissing):
            self._engines.of(self._identity.tenant)[1].end(self._identity.program)
