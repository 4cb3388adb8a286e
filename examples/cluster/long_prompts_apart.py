"""Long prompts have an engine of their own, so that short ones never wait behind them.

    quire router --node http://127.0.0.1:8001 --node http://127.0.0.1:8002 \
        --strategy examples/cluster/long_prompts_apart.py:route
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.cluster import Engine, Request, RoutedAnswer

LONG_CHARS = 8000


async def route(request: Request, engines: Sequence[Engine]) -> RoutedAnswer:
    first, *others = engines
    if len(request.prefix) >= LONG_CHARS or not others:
        return await first.send(request)
    return await min(others, key=lambda engine: engine.load).send(request)
