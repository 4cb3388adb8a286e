"""``/version``: the release of this server, as vLLM's clients and operators' scripts request it."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from starlette.responses import Response

from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.service import Version

router = APIRouter(route_class=StrictRoute, tags=["health"])


@router.head("/version", include_in_schema=False)
@router.get("/version", response_model=Version)
async def show_version() -> Response:
    """The release of Quire that answers."""
    return Response(Version(version=version("quire")).to_json(), media_type="application/json")
