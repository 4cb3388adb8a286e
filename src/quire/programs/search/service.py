"""One program's access to the search engine of its node.

Owns the bounds of one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quire.core.errors import InvalidArgument
from quire.core.ids import ThreadId
from quire.programs.search.engine import SearchResult
from quire.programs.services.encoding import CallOrder
from quire.programs.services.operations import ProgramService, operation

MAX_QUERIES = 64
MAX_QUERY_CHARS = 2048
MAX_TOP_K = 64


class FindTexts(Protocol):
    """The node's search engine for one program. See ``Search`` of the programming interface for the
    errors."""

    async def engine(self) -> str | None: ...

    async def find(
        self, queries: Sequence[str], top_k: int, order: CallOrder
    ) -> list[list[SearchResult]]: ...

    def close(self) -> None: ...


class SearchService(ProgramService):
    def __init__(self, texts: FindTexts) -> None:
        self._texts = texts

    @operation("search.engine")
    async def engine(self) -> str | None:
        return await self._texts.engine()

    @operation("search.find")
    async def find(
        self,
        queries: list[str],
        top_k: int,
        thread: int = 0,
        depth: int = 0,
        priority: int = 0,
        invocation: int = 0,
        remaining_us: int = 0,
    ) -> list[list[SearchResult]]:
        if not 1 <= len(queries) <= MAX_QUERIES:
            raise InvalidArgument(
                f"search: {len(queries)} queries; give 1 to {MAX_QUERIES} in one call",
                param="queries",
            )
        for index, query in enumerate(queries):
            check_search_query(f"search: queries[{index}]", query, "queries")
        check_top_k("search: top_k", top_k, "top_k")
        order = CallOrder(ThreadId(thread), depth, priority, invocation, remaining_us)
        return await self._texts.find(queries, top_k, order)

    def close(self) -> None:
        self._texts.close()


def check_search_query(what: str, query: str, param: str) -> None:
    """Raise ``InvalidArgument`` unless ``query`` can be searched for. ``what``: its name for the
    message."""
    if not query.strip():
        raise InvalidArgument(f"{what} is empty: give words to search for", param=param)
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidArgument(
            f"{what} has {len(query)} characters; at most {MAX_QUERY_CHARS} are searched for: "
            "shorten it",
            param=param,
        )


def check_top_k(what: str, top_k: int, param: str) -> None:
    """Raise ``InvalidArgument`` unless ``top_k`` results may be requested."""
    if not 1 <= top_k <= MAX_TOP_K:
        raise InvalidArgument(f"{what} is {top_k}: give 1 to {MAX_TOP_K}", param=param)
