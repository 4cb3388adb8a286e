"""The engine that has computed the longest beginning of the prompt, unless it has too much to do.

Which engine has computed what is known from what was routed where, in a radix tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.cluster.answer import Answer
from quire.cluster.interfaces import Engine
from quire.cluster.prefix_tree import PrefixTree
from quire.cluster.request import Request


@dataclass
class CacheAware:
    """An engine with ``min_match`` of the prompt is preferred while its load is at most
    ``max_extra`` requests above the least one."""

    min_match: float = 0.3
    max_extra: int = 8
    tree: PrefixTree[Engine] = field(default_factory=PrefixTree, init=False)

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> Answer:
        engine = self._choose(request, engines)
        self.tree.add(request.prefix, engine)
        return await engine.send(request)

    def _choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        least = min(engines, key=lambda engine: engine.load)
        matched = self.tree.matched(request.prefix)
        wanted = self.min_match * len(request.prefix)
        fitting = [
            engine
            for engine in engines
            if matched.get(engine, 0) > wanted and engine.load - least.load <= self.max_extra
        ]
        if not fitting:
            return least
        return max(fitting, key=lambda engine: (matched[engine], -engine.load))
