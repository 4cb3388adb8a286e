"""``/v1/responses``: create, read, follow, cancel and delete responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from quire.core.errors import UnknownHandle
from quire.node import SessionHandle
from quire.server.context import caller_of, context_of
from quire.server.errors.errors import HttpError
from quire.server.list_page import ListPage
from quire.server.planning import begin, open_generation
from quire.server.requests.hints import tell_clipped
from quire.server.requests.strict_json import StrictRoute
from quire.server.responses.background import BackgroundRun
from quire.server.responses.creation import Creation, count_input_tokens, create
from quire.server.responses.following import FollowedResponse
from quire.server.responses.store import StoredResponse
from quire.server.schemas.base import WholeModel, event_responses
from quire.server.schemas.responses import (
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    InputTokensRequest,
    ResponseObject,
    ResponsesRequest,
)

router = APIRouter(route_class=StrictRoute, tags=["responses"])

_EVENTS = event_responses("Typed events with sequence numbers, the last one with the response")
ResponseId = Annotated[str, Path(max_length=256)]


@router.post("/v1/responses", response_model=ResponseObject, responses=_EVENTS)
async def create_response(request: Request, body: ResponsesRequest) -> Response:
    """Create a response; whole, as typed events, or in the background."""
    creation = await create(request, body)
    if body.background:
        return _in_background(request, creation)
    plan = creation.plan()
    store, entry, formatter = context_of(request).responses, creation.entry, creation.formatter
    if entry is None:
        return begin(request, plan)
    stored = entry

    def finished(session: SessionHandle) -> None:
        assert plan.on_finished is not None
        plan.on_finished(session)
        stored.response = formatter.response()
        store.put(stored)

    return begin(request, plan.then(finished))


@router.post("/v1/responses/input_tokens", response_model=InputTokenCount)
async def count_tokens(request: Request, body: InputTokensRequest) -> Response:
    """Count the tokens of a response's prompt, including tools, instructions and what it goes on
    from."""
    return _json(InputTokenCount(input_tokens=await count_input_tokens(request, body)))


def _in_background(request: Request, creation: Creation) -> Response:
    store, entry = context_of(request).responses, creation.entry
    assert entry is not None, "what runs in the background is stored"
    store.check_running(entry.tenant)

    def on_end(response: ResponseObject) -> None:
        entry.response = response
        store.finish(entry)

    begun = open_generation(request, creation.plan())
    entry.run = BackgroundRun(
        begun.generation,
        creation.formatter,
        begun.observer,
        on_finished=begun.finished,
        on_end=on_end,
        on_grown=lambda: store.grown(entry),
        keep_events=bool(creation.body.stream),
    )
    store.put(entry)
    headers = {"x-quire-program-id": begun.generation.session.id}
    if creation.body.stream:
        return tell_clipped(_followed(request, entry.run, -1, headers), creation.body)
    return tell_clipped(_json(entry.current(), headers), creation.body)


@router.get("/v1/responses/{response}", response_model=ResponseObject, responses=_EVENTS)
async def get_response(
    request: Request,
    response: ResponseId,
    stream: Annotated[bool, Query()] = False,
    starting_after: Annotated[int, Query(ge=-1, le=1 << 31)] = -1,
) -> Response:
    """The current state of a stored response; with `stream` the events of a background response."""
    entry = _find(request, response)
    if not stream:
        return _json(entry.current())
    if entry.run is None or not entry.run.can_be_followed:
        raise HttpError(
            400,
            "only a response that was created with background and stream has events to read again: "
            "leave stream out",
            code="invalid_argument",
            param="stream",
        )
    return _followed(request, entry.run, starting_after)


@router.post("/v1/responses/{response}/cancel", response_model=ResponseObject)
async def cancel_response(request: Request, response: ResponseId) -> Response:
    """End a background response; its output so far is kept. Idempotent."""
    entry = _find(request, response)
    if entry.run is None:
        raise HttpError(
            400,
            "only a response in the background can be cancelled; to end another one, close its "
            "connection",
            code="invalid_argument",
            param="response",
        )
    entry.run.cancel()
    await entry.run.wait_ended()
    return _json(entry.current())


@router.delete("/v1/responses/{response}", response_model=DeletedResponse)
async def delete_response(request: Request, response: ResponseId) -> Response:
    """Delete a stored response and free its pages; a running one is cancelled."""
    context_of(request).responses.delete(caller_of(request), response)
    return _json(DeletedResponse(id=response))


@router.get("/v1/responses/{response}/input_items", response_model=InputItemList)
async def list_input_items(
    request: Request,
    response: ResponseId,
    after: Annotated[str | None, Query(max_length=256)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
) -> Response:
    """The input items of a stored response, newest first unless `order` is `asc`."""
    items = _find(request, response).input_items
    if order == "desc":
        items = items[::-1]
    page = ListPage(items, lambda item: str(item["id"]), after, limit)
    body = InputItemList(
        data=page.items, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more
    )
    return _json(body)


@router.get("/v1/microserving/items/{item}", response_model=dict[str, Any])
async def get_item(request: Request, item: ResponseId) -> Response:
    """An item of a stored response, to which a request may refer by `item_reference`. A router asks
    which node has it."""
    found = context_of(request).responses.find_item(caller_of(request), item)
    if found is None:
        raise UnknownHandle(f"no stored item {item[:100]!r}")
    return Response(msgspec.json.encode(found), media_type="application/json")


def _find(request: Request, response_id: str) -> StoredResponse:
    return context_of(request).responses.get(caller_of(request), response_id)


def _json(body: WholeModel, headers: dict[str, str] | None = None) -> Response:
    return Response(body.to_json(), media_type="application/json", headers=headers)


def _followed(
    request: Request, run: BackgroundRun, after: int, headers: dict[str, str] | None = None
) -> Response:
    limit_s = context_of(request).config.write_timeout_s
    return FollowedResponse(run.follow(after), write_timeout_s=limit_s, headers=headers or {})
