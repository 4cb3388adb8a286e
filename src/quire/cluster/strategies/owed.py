"""The tokens of prompts that engines have still to compute, as a strategy counts them itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from quire.cluster.engines.interfaces import Engine


class OwedTokens(Counter[str]):
    """By the name of the engine."""

    @contextmanager
    def owing(self, engine: Engine, num_tokens: int) -> Iterator[None]:
        """Count ``num_tokens`` of a prompt that ``engine`` has to compute, until the context is
        left."""
        self[engine.name] += num_tokens
        try:
            yield
        finally:
            self[engine.name] -= num_tokens
