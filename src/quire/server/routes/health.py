"""``/health`` and ``/ready``: whether a part of the node has failed, and whether it takes new work.
Without a key.

``/ping`` is SageMaker's only probe, so it is ``/ready``. Other servers do not answer while they
load and need not distinguish the two. Probes may use HEAD.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.node import NodeHealth
from quire.server.context import context_of
from quire.server.errors.errors import RETRY_AFTER_S
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.base import Responses
from quire.server.schemas.service import EngineStatus, Health, SandboxStatus

router = APIRouter(route_class=StrictRoute, tags=["health"])

_UNREADY: Responses = {503: {"model": Health, "description": "Not now; the body says why"}}


@router.head("/health", include_in_schema=False)
@router.get("/health", response_model=Health, responses=_UNREADY)
async def health(request: Request) -> Response:
    """200 while no part has failed (loading and draining count as alive), else 503."""
    found = context_of(request).node.health()
    return _response(found, good=found.alive)


@router.head("/ping", include_in_schema=False)
@router.post("/ping", response_model=Health, responses=_UNREADY)
@router.get("/ping", response_model=Health, responses=_UNREADY)
async def ping(request: Request) -> Response:
    """The same as `/ready`."""
    return await ready(request)


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_model=Health, responses=_UNREADY)
async def ready(request: Request) -> Response:
    """200 when new work is accepted and every engine can do it, else 503."""
    found = context_of(request).node.health()
    return _response(found, good=found.ready)


def _response(found: NodeHealth, *, good: bool) -> Response:
    body = Health(
        status=(
            "unhealthy"
            if not found.alive
            else "draining"
            if found.draining
            else "ok"
            if found.ready
            else "loading"
        ),
        detail=found.detail,
        models=dict(found.models),
        engines={
            str(engine): EngineStatus(
                state=str(status.state),
                detail=status.detail,
                restarts=status.restarts,
                progress=status.progress,
            )
            for engine, status in found.engines.items()
        },
        sandbox={
            name: SandboxStatus(
                state=str(process.state), detail=process.detail, losses=process.losses
            )
            for name, process in found.sandbox.items()
        },
    )
    headers = {} if good else {"retry-after": str(RETRY_AFTER_S)}
    return Response(body.to_json(), 200 if good else 503, headers, "application/json")
