"""Contexts move to engines that have time for them (the paper's figure 5).

A radix tree of where prompts were routed shows which engine has computed the longest beginning of a
prompt. The request goes there while that engine is not busier than others. Otherwise that engine
sends what it has of the context to the least used one, which computes the rest and answers, and is
from then on a holder of it, too. The busy engine computes nothing for it: the tokens behind its
last full page would be a pass of their own there, and are computed with the new ones otherwise.
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
            or not request.is_divisible
            or num_matched <= matched.get(life_of(chosen), 0)
        ):
            return await chosen.send(request)
        end = await _end(request, holder, chosen, num_matched)
        if end < self.min_tokens:
            return await chosen.send(request)
        return await handed_over(request, holder, chosen, end)


async def _end(request: Request, holder: Engine, chosen: Engine, num_matched: int) -> int:
    """Return how many tokens of the prompt ``holder`` has; if the nodes report no index, as many as
    its share ``num_matched`` of the characters suggests. The last one is always computed."""
    located = await chosen.locate(request)
    if located is not None:
        return min(located.num_matched.get(holder.name, 0), len(located.tokens) - 1)
    num_tokens = len(await chosen.prompt_tokens(request))
    return min(num_tokens - 1, num_tokens * num_matched // len(request.prefix))
