"""``SearchEngine``: finds texts for a query, whatever has them.

Owns the bounds of what an engine may return. Must not know who asks.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

MAX_TITLE_CHARS = 512
MAX_ADDRESS_CHARS = 2048
MAX_TEXT_CHARS = 4096
"""Of one result; what is longer is cut."""


class SearchResult(NamedTuple):
    """``address``: of the page or file that has the text; it may be empty, and nothing fetches it.
    ``score``: higher is better, comparable within one query alone."""

    title: str
    address: str
    text: str
    score: float


class SearchEngine(Protocol):
    """Belongs to one loop. Queries may run side by side."""

    @property
    def name(self) -> str:
        """What it is, for people: ``fts5``, ``searxng``."""
        ...

    @property
    def at_once(self) -> int:
        """The queries that are worth to be carried out side by side."""
        ...

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        """At most ``top_k`` results within the bounds, each with a text, best first.

        Raises:
            EngineLost: it cannot be reached now, or does not answer in time; a retry is safe.
            EngineFault: what it answers cannot be read, and asking again will not help.
            QuotaExceeded: the query takes more time than one may.
        """
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...
