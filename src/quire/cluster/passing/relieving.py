"""Takes requests away from engines that cannot serve them now, for other engines that can.

A node whose engine is lost keeps what waits for a first token until the engine is loaded again, as
it must if it is alone. Owns when another engine is the better place; ``dispatch`` finds it.
"""

from __future__ import annotations

from functools import partial

from quire.cluster.engines.fleet import Fleet
from quire.cluster.nodes.node import RoutedNode
from quire.cluster.requests.request import Request


def relieve(fleet: Fleet) -> None:
    """Let requests of which nothing is answered yet go from nodes without an engine for them, if
    another node can serve them now."""
    for engine in (*fleet.engines, *fleet.leaving):
        if engine.node.unready_models:
            engine.unanswered.let_go(partial(_is_better_off, fleet, engine.node))


def _is_better_off(fleet: Fleet, node: RoutedNode, request: Request) -> bool:
    return node.lacks_engine_for(request.model) and any(
        engine.node.takes_work_for(request.model) and engine.name not in request.work.lost
        for engine in fleet.engines
    )
