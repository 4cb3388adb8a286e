"""What engines are about to have: pages of prompts that have been routed and are not yet computed.

Without it, requests with one beginning that come together would each find it nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.cluster.nodes.page_tree import Keys


class ComputingEngines:
    """By each page, the engines that compute it, one entry for each request."""

    def __init__(self) -> None:
        self._engines: dict[int, list[str]] = {}

    @contextmanager
    def at(self, engine: str, keys: Keys) -> Iterator[None]:
        """While ``engine`` computes a prompt with these pages."""
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
        """How many pages of a prompt, from its start, each engine computes now."""
        found: dict[str, int] = {}
        for depth, key in enumerate(keys, 1):
            going = [name for name in self._engines.get(key, ()) if found.get(name, 0) == depth - 1]
            if not going:
                break
            found.update(dict.fromkeys(going, depth))
        return found
