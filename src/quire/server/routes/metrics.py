"""``/metrics`` in Prometheus' text format."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from quire.server.context import context_of
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.base import Responses

router = APIRouter(route_class=StrictRoute, tags=["metrics"])

_TEXT: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics(request: Request) -> Response:
    """Requests as their clients saw them, and the node's state now."""
    return Response(context_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
