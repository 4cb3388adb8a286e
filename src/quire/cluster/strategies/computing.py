"""The pages that engines are about to have: those of prompts that are routed and not yet computed.

Without it, requests with a common beginning that arrive together would find it at no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.cluster.nodes.page_tree import Keys


class ComputingEngines:
    """For each page, the names of the engines that compute it, one entry for each request."""

    def __init__(self) -> None:
        self._engines: dict[int, list[str]] = {}

    @contextmanager
    def at(self, engine: str, keys: Keys) -> Iterator[None]:
        """Count ``engine`` as computing a prompt with these pages, until the context is left."""
        for key in keys:
            self._engines.setdefault(key, []).append(engine)
        try:
            yield
        finally:
            for key in keys:
                engines = self._engines[key]
                engines.remove(engine)
                if not engines:
                    del self._engines[key]

    def matched(self, keys: Keys) -> dict[str, int]:
        """Return how many pages of a prompt, from its start, each engine computes now."""
        found: dict[str, int] = {}
        for depth, key in enumerate(keys, 1):
            going = [name for name in self._engines.get(key, ()) if found.get(name, 0) == depth - 1]
            if not going:
                break
            found.update(dict.fromkeys(going, depth))
        return found
