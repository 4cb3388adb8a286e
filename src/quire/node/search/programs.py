"""The node's search engines for programs: what ``SearchService`` asks, on the edge's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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
        found = self._engines.of(self._identity.tenant)
        return None if found is None else found[0].name

    async def find(
        self, queries: Sequence[str], top_k: int, order: CallOrder
    ) -> list[list[SearchResult]]:
        found: list[list[SearchResult]] = await self._on_edge(self._find(queries, top_k, order))
        return found

    async def _find(
        self, queries: Sequence[str], top_k: int, order: CallOrder
    ) -> list[list[SearchResult]]:
        """Each query has its own turn, so that many of them hold nobody up."""
        found = self._engines.of(self._identity.tenant)
        if found is None:
            raise no_engine(self._identity.tenant)
        engine, turns = found

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
        found = self._engines.of(self._identity.tenant)
        if found is not None:
            found[1].end(self._identity.program)


def no_engine(tenant: str) -> TraitMissing:
    return TraitMissing(
        f"search: this node has no search engine for tenant {tenant!r}: start it with --search "
        "DIRECTORY or --search URL, or give the tenant one in the tenants file"
    )
