"""Contexts move to engines that have time for them (the paper's figure 5).

A radix tree of where prompts were routed shows which engine has computed the longest beginning of a
prompt. The request goes there while that engine is not busier than others. Otherwise that engine
sends the context to the least used one, which answers and is from then on a holder of it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.cluster.engines.interfaces import Engine
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.prefix_tree import PrefixTree
from quire.cluster.requests.request import Request
from quire.cluster.strategies.choices import Life, least_used_of, life_of
from quire.cluster.strategies.handing_over import handed_over


@dataclass
class Migrating:
    """A holder is preferred while its load is at most ``max_extra`` requests above the lowest. A
    context of fewer than ``min_tokens`` is computed again."""

    max_extra: int = 2
    min_tokens: int = 128
    tree: PrefixTree[Life] = field(default_factory=PrefixTree, init=False)
    routes_sessions = True

    async def __call__(self, request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
        least = least_used_of(engines)
        matched = self.tree.matched(request.prefix)
        holder = max(engines, key=lambda engine: (matched.get(life_of(engine), 0), -engine.load))
        num_matched = matched.get(life_of(holder), 0)
        is_free = holder.load - least.load <= self.max_extra
        chosen = holder if num_matched and is_free else least
        self.tree.add(request.prefix, life_of(chosen))
        if (
            chosen is holder
            or request.prompt is None
            or num_matched <= matched.get(life_of(chosen), 0)
        ):
            return await chosen.send(request)
        num_tokens = len(await chosen.prompt_tokens(request))
        end = min(num_tokens - 1, num_tokens * num_matched // len(request.prefix))
        if end < self.min_tokens:
            return await chosen.send(request)
        return await handed_over(request, holder, chosen, end)
