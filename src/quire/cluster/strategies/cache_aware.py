"""The engine that has computed the longest beginning of the prompt, unless it has too much to do.

Which engine has computed what is known from what was routed where, in a radix tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.prefix_tree import PrefixTree
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import Life, least_used_of, life_of


@dataclass
class CacheAware:
    """An engine with ``min_match`` of the prompt is preferred while its load is at most
    ``max_extra`` requests above the least one."""

    min_match: float = 0.3
    max_extra: int = 8
    tree: PrefixTree[Life] = field(default_factory=PrefixTree, init=False)

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> Answer:
        engine = self._choose(request, engines)
        self.tree.add(request.prefix, life_of(engine))
        return await engine.send(request)

    def _choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        least = least_used_of(engines)
        matched = self.tree.matched(request.prefix)
        wanted = self.min_match * len(request.prefix)
        fitting = [
            engine
            for engine in engines
            if matched.get(life_of(engine), 0) > wanted
            and engine.load - least.load <= self.max_extra
        ]
        if not fitting:
            return least
        return max(fitting, key=lambda engine: (matched[life_of(engine)], -engine.load))
