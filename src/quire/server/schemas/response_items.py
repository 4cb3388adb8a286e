"""Items of ``/v1/responses``: the parts of a conversation, in requests and in answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from quire.server.schemas.base import (
    LIST_SHAPE,
    TEXT_SHAPE,
    EchoedModel,
    Name,
    ShortText,
    Text,
    TextOrList,
    WholeModel,
)
from quire.server.schemas.messages import MAX_MESSAGES, MAX_PARTS, ImageText

ItemStatus = Literal["in_progress", "completed", "incomplete"]


# -- what clients send -----------------------------------------------------------------------------


class TextItemPart(EchoedModel):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: Text


class RefusalItemPart(EchoedModel):
    type: Literal["refusal"]
    refusal: Text


class ImageItemPart(EchoedModel):
    """``image_url``: a URL, as a string."""

    type: Literal["input_image"]
    image_url: ImageText | None = None
    detail: ShortText | None = None


class OtherItemPart(EchoedModel):
    """Parts that no model here can read; they are refused by name."""

    type: Literal["input_file", "input_audio"]


ItemPart = Annotated[
    TextItemPart | RefusalItemPart | ImageItemPart | OtherItemPart, Field(discriminator="type")
]
ItemParts = Annotated[list[ItemPart], Field(max_length=MAX_PARTS, fail_fast=True)]
ItemContent = Annotated[Annotated[Text, TEXT_SHAPE] | Annotated[ItemParts, LIST_SHAPE], TextOrList]
ItemTexts = Annotated[list[TextItemPart], Field(max_length=MAX_PARTS, fail_fast=True)]


class MessageItem(EchoedModel):
    """A message; ``type`` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent
    id: ShortText | None = None


class FunctionCallItem(EchoedModel):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Text = ""
    id: ShortText | None = None


class FunctionCallOutputItem(EchoedModel):
    type: Literal["function_call_output"]
    call_id: Name
    output: ItemContent
    id: ShortText | None = None


class ReasoningItem(EchoedModel):
    """Earlier reasoning: its ``content``, or its ``summary`` if there is no content."""

    type: Literal["reasoning"]
    summary: ItemTexts | None = None
    content: ItemTexts | None = None
    id: ShortText | None = None


class ItemReference(EchoedModel):
    """An item of a stored response, by its id."""

    type: Literal["item_reference"] | None = "item_reference"
    id: ShortText


def _item_kind(value: object) -> str | None:
    if not isinstance(value, dict):
        kind = getattr(value, "type", None)
    elif value.get("type") is None:
        kind = "message" if "role" in value else "item_reference"
    else:
        kind = value["type"]
    return f"<{kind}>" if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionCallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ItemReference, Tag("<item_reference>")],
    Discriminator(
        _item_kind,
        custom_error_type="invalid_item",
        custom_error_message="an item's type must be message, function_call, "
        "function_call_output, reasoning or item_reference: no other tools run here",
    ),
]
InputItems = Annotated[list[InputItem], Field(max_length=MAX_MESSAGES, fail_fast=True)]
ResponseInput = Annotated[
    Annotated[Text, TEXT_SHAPE] | Annotated[InputItems, LIST_SHAPE], TextOrList
]


# -- what the server sends -------------------------------------------------------------------------


class OutputTopLogprob(WholeModel):
    token: str
    logprob: float
    bytes: list[int]


class OutputLogprob(OutputTopLogprob):
    top_logprobs: list[OutputTopLogprob]


class OutputText(WholeModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[str] = Field(default_factory=list)
    logprobs: list[OutputLogprob] = Field(default_factory=list)


class OutputMessage(WholeModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningText(WholeModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(WholeModel):
    """``summary`` is empty: the reasoning itself is in ``content``."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: list[str] = Field(default_factory=list)
    content: list[ReasoningText]
    status: ItemStatus


class OutputFunctionCall(WholeModel):
    """``arguments`` is JSON text, as the model wrote it."""

    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = Annotated[
    OutputMessage | OutputReasoning | OutputFunctionCall, Field(discriminator="type")
]
