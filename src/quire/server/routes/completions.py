"""``/v1/completions``: continues texts or token ids."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.server.completions.fields import completion_plan
from quire.server.planning import begin
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.base import event_responses
from quire.server.schemas.completions import Completion, CompletionsRequest

router = APIRouter(route_class=StrictRoute, tags=["completions"])

_EVENTS = event_responses()


@router.post("/v1/completions", response_model=Completion, responses=_EVENTS)
async def create_completion(request: Request, body: CompletionsRequest) -> Response:
    """Continue each prompt; with `stream` as server-sent events that end with `[DONE]`."""
    return begin(request, await completion_plan(request, body))
