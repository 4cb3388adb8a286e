"""Chooses the engine that has the longest beginning of the prompt, unless its load is too high.

The nodes report which engine has what (their prefix indexes). If they do not, it is inferred from
where earlier requests were routed, with a radix tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.prefix_tree import PrefixTree
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import Life, least_used_of, life_of
from quire.cluster.strategies.computing import ComputingEngines


@dataclass
class CacheAware:
    """An engine that has more than the share ``min_match`` of the prompt is preferred while its
    load is at most ``max_extra`` requests above the lowest."""

    min_match: float = 0.3
    max_extra: int = 16
    tree: PrefixTree[Life] = field(default_factory=PrefixTree, init=False)
    computing: ComputingEngines = field(default_factory=ComputingEngines, init=False)

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        located = await least_used_of(engines).locate(request)
        if located is None:
            return await self._by_history(request, engines)
        matched = dict(located.num_matched)
        for name, num_pages in self.computing.matched(located.keys).items():
            matched[name] = max(matched.get(name, 0), num_pages * located.page_size)
        engine = self._choose(engines, matched, len(located.tokens))
        with self.computing.at(engine.name, located.keys):
            return await engine.send(request)

    async def _by_history(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        seen = self.tree.matched(request.prefix)
        matched = {engine.name: seen.get(life_of(engine), 0) for engine in engines}
        engine = self._choose(engines, matched, len(request.prefix))
        self.tree.add(request.prefix, life_of(engine))
        return await engine.send(request)

    def _choose(self, engines: Sequence[Engine], matched: Mapping[str, int], length: int) -> Engine:
        """Return the engine for a prompt of ``length``, of which each engine has ``matched``, by
        name."""
        least = least_used_of(engines)
        fitting = [
            engine
            for engine in engines
            if matched.get(engine.name, 0) > self.min_match * length
            and engine.load - least.load <= self.max_extra
        ]
        if not fitting:
            return least
        return max(fitting, key=lambda engine: (matched[engine.name], -engine.load))
