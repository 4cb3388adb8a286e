"""Trait Search: texts of the web or of indexed files, found by words. Served by the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.integers import call_order, whole_number
from quire.programs.api.queued import TraitFunctions


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result. ``address``: the URL of the page, or the path of the file within the indexed
    directory; nothing is fetched from it. ``score``: higher is better, comparable within one query
    alone."""

    title: str
    address: str
    text: str
    score: float


class SearchFunctions(TraitFunctions):
    trait = Trait.SEARCH

    async def available_search(self) -> str | None:
        """The search engine that this program's tenant has: ``fts5`` (an index of the node),
        ``searxng``, or None if there is none."""
        name: str | None = await self._issuer.ask("search.engine")
        return name

    async def search(
        self,
        queries: Sequence[str],
        top_k: int = 4,
        *,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> list[list[SearchHit]]:
        """Search for each of ``queries``: at most ``top_k`` results of each, best first.

        Queries are words, not an expression: punctuation is ignored or passed on as text.
        The engine is that of the node (``quire serve --search``), or the one that the operator has
        given to this tenant. The title, address and text of a result are cut to 512, 2048 and 4096
        characters. ``thread``, ``depth`` and ``priority``: as of a queue
        (``create_queue``); ``invocation`` and ``remaining_us``: as of ``set_queue_depth``.

        Raises:
            InvalidArgument: no queries, over 64 of them, one that is empty or has over 2048
                characters, or a ``top_k`` that is not 1 to 64.
            TraitMissing: there is no search engine for this tenant.
            EngineLost: the engine cannot be reached, or has not answered in time; a retry is safe.
            EngineFault: the engine's answer cannot be read.
            QuotaExceeded: a query takes too much time.
        """
        if isinstance(queries, str):
            raise InvalidArgument("search: queries must be a list of texts, not one text")
        found: list[list[tuple[str, str, str, float]]] = await self._issuer.ask(
            "search.find",
            queries=list(queries),
            top_k=whole_number("top_k", top_k),
            **call_order(thread, depth, priority, invocation, remaining_us),
        )
        return [[SearchHit(*one) for one in results] for results in found]
