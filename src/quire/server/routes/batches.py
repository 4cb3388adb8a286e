"""``/v1/batches``: many requests in a file, run at the lowest priority."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from quire.server.context import caller_of, context_of
from quire.server.list_page import ListPage
from quire.server.requests.strict_json import StrictRoute
from quire.server.schemas.base import WholeModel
from quire.server.schemas.batches import BatchJob, BatchList, BatchRequest

router = APIRouter(route_class=StrictRoute, tags=["batches"])

BatchId = Annotated[str, Path(max_length=256)]


@router.post("/v1/batches", response_model=BatchJob)
async def create_batch(request: Request, body: BatchRequest) -> Response:
    """Run the requests of a file."""
    return _json(await context_of(request).batches.create(caller_of(request), body))


@router.get("/v1/batches", response_model=BatchList)
async def list_batches(
    request: Request,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    """The caller's batches, newest first."""
    own = context_of(request).batches.batches(caller_of(request))
    page = ListPage(own, lambda one: one.id, after, limit)
    return _json(
        BatchList(
            data=page.items, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more
        )
    )


@router.get("/v1/batches/{batch}", response_model=BatchJob)
async def get_batch(request: Request, batch: BatchId) -> Response:
    """The current state of a batch."""
    return _json(context_of(request).batches.get(caller_of(request), batch))


@router.post("/v1/batches/{batch}/cancel", response_model=BatchJob)
async def cancel_batch(request: Request, batch: BatchId) -> Response:
    """End a batch; existing answers are kept. Idempotent."""
    return _json(await context_of(request).batches.cancel(caller_of(request), batch))


def _json(body: WholeModel) -> Response:
    return Response(body.to_json(), media_type="application/json")
