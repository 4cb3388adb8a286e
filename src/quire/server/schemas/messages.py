"""The messages of a chat request, one model per role."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag

from quire.server.schemas.base import (
    LIST_SHAPE,
    TEXT_SHAPE,
    EchoedModel,
    JsonObject,
    Name,
    ShortText,
    Text,
    TextOrList,
)

MAX_MESSAGES = 2048
MAX_PARTS = 256
MAX_TOOL_CALLS = 256
MAX_URL_CHARS = 32 << 20
"""The length of an image of the largest accepted size in base64."""

ImageText = Annotated[str, StringConstraints(max_length=MAX_URL_CHARS)]
"""A data URL, or its base64 alone."""


class TextPart(EchoedModel):
    type: Literal["text", "input_text", "output_text"]
    text: Text


class RefusalPart(EchoedModel):
    type: Literal["refusal"]
    refusal: Text


class ImageUrl(EchoedModel):
    """``detail`` and similar fields have no effect: a vision tower has one size."""

    url: ImageText


class MediaPart(EchoedModel):
    """Parts that only multimodal models can read; a text model refuses them by name."""

    type: Literal["image_url", "input_audio", "file", "video_url", "audio_url"]
    image_url: ImageUrl | None = None

    @property
    def url(self) -> str | None:
        return None if self.image_url is None else self.image_url.url


Part = Annotated[TextPart | RefusalPart | MediaPart, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]
TextOrParts = Annotated[Annotated[Text, TEXT_SHAPE] | Annotated[Parts, LIST_SHAPE], TextOrList]


class CalledFunction(EchoedModel):
    """``arguments`` is JSON text, as the model wrote it."""

    name: Name
    arguments: Text = ""


class MessageToolCall(EchoedModel):
    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class SystemMessage(EchoedModel):
    role: Literal["system", "developer"]
    content: TextOrParts
    name: Name | None = None


class UserMessage(EchoedModel):
    role: Literal["user"]
    content: TextOrParts
    name: Name | None = None


class AssistantMessage(EchoedModel):
    """An earlier answer. ``content`` or ``tool_calls`` must not be empty."""

    role: Literal["assistant"]
    content: TextOrParts | None = None
    refusal: Text | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    tool_calls: (
        Annotated[list[MessageToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None
    ) = None
    name: Name | None = None


class ToolMessage(EchoedModel):
    role: Literal["tool"]
    content: TextOrParts
    tool_call_id: ShortText
    name: Name | None = None


def _role(value: object) -> str | None:
    role = value.get("role") if isinstance(value, dict) else getattr(value, "role", None)
    return role if isinstance(role, str) else None


def _message_kind(value: object) -> str | None:
    role = _role(value)
    return "system" if role == "developer" else role


Message = Annotated[
    Annotated[SystemMessage, Tag("system")]
    | Annotated[UserMessage, Tag("user")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")],
    Discriminator(
        _message_kind,
        custom_error_type="invalid_role",
        custom_error_message="role must be system, developer, user, assistant or tool",
    ),
]
Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
RESERVED_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "dict",
        "documents",
        "messages",
        "namespace",
        "raise_exception",
        "range",
        "self",
        "strftime_now",
        "tools",
    }
)
"""Names that the renderer and its sandbox define in every template."""


def _not_reserved(variables: dict[str, Any]) -> dict[str, Any]:
    for name in variables:
        if name in RESERVED_VARIABLES or name.startswith("__"):
            raise ValueError(f"{name[:64]!r} is a name of the renderer's own: leave it out")
    return variables


TemplateVariables = Annotated[JsonObject, AfterValidator(_not_reserved)]
