"""``/v1/conversations``: conversations and their items."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quire.server.schemas.base import RequestModel, ShortTexts, WholeModel
from quire.server.schemas.messages import MAX_MESSAGES
from quire.server.schemas.response_items import InputItem, InputItems


class ConversationRequest(RequestModel):
    items: InputItems | None = None
    metadata: ShortTexts | None = None


class ConversationUpdate(RequestModel):
    metadata: ShortTexts


class ConversationItemsRequest(RequestModel):
    items: Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class ConversationObject(WholeModel):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(WholeModel):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class ConversationItems(WholeModel):
    """Items as ``/v1/responses`` shows them."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
