"""``SearchEngine``: the interface that finds texts for a query.

Owns the bounds of the results that an engine may return. Must not know whose query it is.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

MAX_TITLE_CHARS = 512
MAX_ADDRESS_CHARS = 2048
MAX_TEXT_CHARS = 4096
"""The longest text of one result; a longer one is cut."""


class SearchResult(NamedTuple):
    """One result. ``address``: that of the page or file with the text; it may be empty, and nothing
    fetches it. ``score``: higher is better, comparable within one query alone."""

    title: str
    address: str
    text: str
    score: float


class SearchEngine(Protocol):
    """Finds texts. Belongs to one loop. Queries may run side by side."""

    @property
    def name(self) -> str:
        """The kind of engine: ``fts5``, ``searxng``."""
        ...

    @property
    def at_once(self) -> int:
        """The number of queries that may run side by side with a gain."""
        ...

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        """At most ``top_k`` results within the bounds, each with a text, best first.

        Raises:
            EngineLost: it cannot be reached now, or does not answer in time; a retry is safe.
            EngineFault: its answer cannot be read, and a retry will not help.
            QuotaExceeded: the query takes too much time.
        """
        ...

    async def close(self) -> None:
        """End the engine. Idempotent."""
        ...
