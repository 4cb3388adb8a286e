"""``/v1/conversations``: the conversations that responses with ``conversation`` continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from quire.server.context import caller_of, context_of
from quire.server.list_page import ListPage
from quire.server.requests.strict_json import StrictRoute
from quire.server.responses.conversations import StoredConversation
from quire.server.responses.creation import stored_item
from quire.server.responses.translation import resolved
from quire.server.schemas.base import WholeModel
from quire.server.schemas.conversations import (
    ConversationItems,
    ConversationItemsRequest,
    ConversationObject,
    ConversationRequest,
    ConversationUpdate,
    DeletedConversation,
)
from quire.server.schemas.response_items import InputItem
from quire.server.schemas.responses import Include

router = APIRouter(route_class=StrictRoute, tags=["conversations"])

ConversationId = Annotated[str, Path(max_length=256)]
ItemId = Annotated[str, Path(max_length=256)]
Included = Annotated[list[Include] | None, Query(max_length=16)]
"""Accepted without effect: items are always shown whole."""


@router.post("/v1/conversations", response_model=ConversationObject)
async def create_conversation(request: Request, body: ConversationRequest) -> Response:
    """Create a conversation, empty or with items."""
    items = _stored(request, body.items or [])
    store = context_of(request).conversations
    return _told(store.create(caller_of(request), body.metadata or {}, items))


@router.get("/v1/conversations/{conversation}", response_model=ConversationObject)
async def get_conversation(request: Request, conversation: ConversationId) -> Response:
    """A conversation without its items."""
    return _told(_find(request, conversation))


@router.post("/v1/conversations/{conversation}", response_model=ConversationObject)
async def update_conversation(
    request: Request, conversation: ConversationId, body: ConversationUpdate
) -> Response:
    """Replace the metadata of a conversation."""
    entry = _find(request, conversation)
    entry.metadata = body.metadata
    return _told(entry)


@router.delete("/v1/conversations/{conversation}", response_model=DeletedConversation)
async def delete_conversation(request: Request, conversation: ConversationId) -> Response:
    """Delete a conversation; its responses are kept."""
    entry = _find(request, conversation)
    context_of(request).conversations.delete(entry)
    return _json(DeletedConversation(id=entry.id))


@router.post("/v1/conversations/{conversation}/items", response_model=ConversationItems)
async def create_items(
    request: Request,
    conversation: ConversationId,
    body: ConversationItemsRequest,
    include: Included = None,
) -> Response:
    """Add items to a conversation."""
    entry, items = _find(request, conversation), _stored(request, body.items)
    context_of(request).conversations.add(entry, items)
    return _listed(ListPage(items, _id_of, None, len(items)))


@router.get("/v1/conversations/{conversation}/items", response_model=ConversationItems)
async def list_items(
    request: Request,
    conversation: ConversationId,
    after: Annotated[str | None, Query(max_length=256)] = None,
    include: Included = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
) -> Response:
    """The items of a conversation, newest first unless `order` is `asc`."""
    items = _find(request, conversation).items
    return _listed(ListPage(items if order == "asc" else items[::-1], _id_of, after, limit))


@router.get("/v1/conversations/{conversation}/items/{item}", response_model=dict[str, Any])
async def get_item(
    request: Request, conversation: ConversationId, item: ItemId, include: Included = None
) -> Response:
    """One item."""
    found = _find(request, conversation).item(item)
    return Response(msgspec.json.encode(found), media_type="application/json")


@router.delete("/v1/conversations/{conversation}/items/{item}", response_model=ConversationObject)
async def delete_item(request: Request, conversation: ConversationId, item: ItemId) -> Response:
    """Delete an item of a conversation."""
    entry = _find(request, conversation)
    context_of(request).conversations.remove(entry, item)
    return _told(entry)


def _find(request: Request, conversation_id: str) -> StoredConversation:
    return context_of(request).conversations.get(caller_of(request), conversation_id)


def _stored(request: Request, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Return ``items`` in their stored form, with references resolved."""
    store, tenant = context_of(request).responses, caller_of(request)
    found = resolved(items, lambda item_id, param: store.item(tenant, item_id, param), "items")
    return [stored_item(item) for item in found]


def _id_of(item: dict[str, Any]) -> str:
    return str(item["id"])


def _told(entry: StoredConversation) -> Response:
    return _json(
        ConversationObject(id=entry.id, created_at=entry.created_s, metadata=dict(entry.metadata))
    )


def _listed(page: ListPage[dict[str, Any]]) -> Response:
    return _json(
        ConversationItems(
            data=page.items, first_id=page.first_id, last_id=page.last_id, has_more=page.has_more
        )
    )


def _json(body: WholeModel) -> Response:
    return Response(body.to_json(), media_type="application/json")
