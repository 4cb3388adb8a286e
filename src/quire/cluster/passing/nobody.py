"""The error that says why no engine can answer a request, with the state of each.

Must not know how engines are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.cluster.engines.node_engine import NodeEngine
from quire.cluster.requests.request import Request
from quire.core.errors import CapacityError, ModelNotFound, QuireError


def nobody(request: Request, engines: Sequence[NodeEngine]) -> QuireError:
    """Return the error that says why none of ``engines`` can answer ``request``."""
    if not any(engine.node.serves(request.model) for engine in engines):
        return ModelNotFound(
            f"no node behind this router serves {request.model!a}: GET /v1/models lists what "
            "they do",
            param="model",
        )
    states = ", ".join(f"{one.name} {_state(one, request)}" for one in engines)
    return CapacityError(f"no engine takes this request now: {states}; try again")


def _state(engine: NodeEngine, request: Request) -> str:
    """Why ``engine`` does not take ``request`` now, in words."""
    node = engine.node
    if node.liveness.reason:
        return f"{node.liveness.state} ({node.liveness.reason})"
    if engine.name in request.work.lost:
        return "lost"
    if request.model in node.unready_models or (request.model is None and node.unready_models):
        return f"not ready for {', '.join(sorted(node.unready_models))}"
    return "full"
