"""Anthropic's ``/v1/messages``: the request, the message, and the counting of tokens.

Content blocks ignore unknown fields (``cache_control``, ``citations``), because clients send blocks
back as they received them. The body is strict; fields without effect here are listed and accepted.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from quire.server.schemas.base import (
    LIST_SHAPE,
    TEXT_SHAPE,
    EchoedModel,
    FieldError,
    JsonObject,
    Name,
    RequestModel,
    ResponseModel,
    ShortText,
    Text,
    TextOrList,
    WholeModel,
)
from quire.server.schemas.generation import MAX_MAX_TOKENS, StopString
from quire.server.schemas.messages import MAX_MESSAGES, MAX_PARTS, ImageText
from quire.server.schemas.tools import MAX_TOOLS, CustomKind, FunctionName

MAX_STOP_SEQUENCES = 16


# -- content blocks --------------------------------------------------------------------------------


class TextBlock(EchoedModel):
    type: Literal["text"]
    text: Text


TextBlocks = Annotated[list[TextBlock], Field(max_length=MAX_PARTS, fail_fast=True)]


class ImageSource(EchoedModel):
    """``base64`` with ``media_type`` and ``data``, or ``url``."""

    type: Literal["base64", "url"]
    media_type: ShortText | None = None
    data: ImageText | None = None
    url: ImageText | None = None

    @model_validator(mode="after")
    def _complete(self) -> ImageSource:
        if self.type == "url" and self.url is None:
            raise ValueError("a source of type url needs url")
        if self.type == "base64" and (self.data is None or self.media_type is None):
            raise ValueError("a source of type base64 needs media_type and data")
        return self


class ImageBlock(EchoedModel):
    type: Literal["image"]
    source: ImageSource


def _text_source(kind: object) -> object:
    if isinstance(kind, str) and kind not in ("text", "content"):
        raise ValueError(
            f"a document of kind {kind[:64]!r} cannot be read here: send its text, as a source of "
            "type text"
        )
    return kind


class DocumentSource(EchoedModel):
    """``text`` with ``data``, or ``content`` with a text or blocks of text."""

    type: Annotated[Literal["text", "content"], BeforeValidator(_text_source)]
    data: Text | None = None
    content: (
        Annotated[Annotated[Text, TEXT_SHAPE] | Annotated[TextBlocks, LIST_SHAPE], TextOrList]
        | None
    ) = None

    @model_validator(mode="after")
    def _complete(self) -> DocumentSource:
        if self.type == "text" and self.data is None:
            raise ValueError("a source of type text needs data")
        if self.type == "content" and self.content is None:
            raise ValueError("a source of type content needs content")
        return self

    @property
    def text(self) -> str:
        if self.type == "text" or isinstance(self.content, str | None):
            return str(self.data if self.type == "text" else self.content)
        return "\n".join(block.text for block in self.content)


class DocumentBlock(EchoedModel):
    """A document that the model reads as text, with its title and context before it."""

    type: Literal["document"]
    source: DocumentSource
    title: ShortText | None = None
    context: Text | None = None

    @property
    def text(self) -> str:
        return "\n".join(part for part in (self.title, self.context, self.source.text) if part)


class ToolUseBlock(EchoedModel):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: JsonObject


ResultBlock = Annotated[TextBlock | ImageBlock | DocumentBlock, Field(discriminator="type")]
ResultBlocks = Annotated[list[ResultBlock], Field(max_length=MAX_PARTS, fail_fast=True)]


class ToolResultBlock(EchoedModel):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: (
        Annotated[Annotated[Text, TEXT_SHAPE] | Annotated[ResultBlocks, LIST_SHAPE], TextOrList]
        | None
    ) = None
    is_error: bool | None = None


class ThinkingBlock(EchoedModel):
    """``signature`` is accepted and not checked."""

    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


class RedactedThinkingBlock(EchoedModel):
    """Another service's encrypted reasoning, which cannot be read here: it is ignored."""

    type: Literal["redacted_thinking"]


def _block_kind(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if isinstance(kind, str) else None


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ImageBlock, Tag("<image>")]
    | Annotated[DocumentBlock, Tag("<document>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")],
    Discriminator(
        _block_kind,
        custom_error_type="invalid_block",
        custom_error_message="a block's type must be text, image, document, tool_use, tool_result, "
        "thinking or redacted_thinking",
    ),
]
ContentBlocks = Annotated[list[ContentBlock], Field(max_length=MAX_PARTS, fail_fast=True)]
MessageContent = Annotated[
    Annotated[Text, TEXT_SHAPE] | Annotated[ContentBlocks, LIST_SHAPE], TextOrList
]
SystemPrompt = Annotated[
    Annotated[Text, TEXT_SHAPE] | Annotated[TextBlocks, LIST_SHAPE], TextOrList
]


class InputMessage(EchoedModel):
    """``system`` within the conversation is an extension that some clients send."""

    role: Literal["user", "assistant", "system"]
    content: MessageContent


# -- the request -----------------------------------------------------------------------------------


class MessageTool(EchoedModel):
    """A tool of the client. Tools that Anthropic's service runs have another ``type``."""

    type: CustomKind | None = None
    name: FunctionName
    description: Text | None = None
    input_schema: JsonObject
    strict: bool | None = None


class MessageToolChoice(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(EchoedModel):
    """``disabled`` switches the template's thinking off, anything else on; the budget is not
    enforced, ``max_tokens`` is."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, le=MAX_MAX_TOKENS)] | None = None


class JsonOutputFormat(EchoedModel):
    """The schema always constrains the answer."""

    type: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")


class OutputConfig(EchoedModel):
    """``effort`` is passed to the model's template."""

    effort: ShortText | None = None
    format: JsonOutputFormat | None = None


class MessageMetadata(EchoedModel):
    user_id: ShortText | None = None


class Thread(RequestModel):
    """A feature of newer packages: the service keeps the conversation. It is not kept here:
    ``create`` has no effect, and ``continue`` is an error after which the package sends the whole
    conversation again."""

    type: Literal["create", "continue"]
    previous_message_id: ShortText | None = None


def _no_mcp_servers(servers: object) -> object:
    if isinstance(servers, list) and servers:
        raise ValueError(
            "the server reaches no MCP servers for its clients: send their tools as tools, and run "
            "the calls yourself"
        )
    return servers


class CountTokensRequest(RequestModel):
    """The parts of a prompt, and fields without effect here: accepted, bounded, unused."""

    messages: Annotated[
        list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    model: Name | None = Field(None, description="Absent: the node's default model")
    system: SystemPrompt | None = None
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: JsonObject | None = None
    context_management: JsonObject | None = None
    mcp_servers: Annotated[list[JsonObject], BeforeValidator(_no_mcp_servers)] | None = None
    speed: ShortText | None = None
    user_profile_id: ShortText | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> CountTokensRequest:
        names = [tool.name for tool in self.tools or ()]
        if len(set(names)) != len(names):
            raise FieldError("tools", "two tools have the same name")
        choice = self.tool_choice
        if choice is None:
            return self
        if choice.type in ("any", "tool") and not names:
            raise FieldError("tool_choice", "tool_choice asks for a call, but there are no tools")
        if choice.type == "tool" and choice.name not in names:
            raise FieldError(
                "tool_choice", f"tool_choice names {choice.name!r}, which is not in tools"
            )
        return self


class MessagesRequest(CountTokensRequest):
    max_tokens: Annotated[int, Field(ge=1, le=MAX_MAX_TOKENS)]
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=MAX_STOP_SEQUENCES, fail_fast=True)] | None
    ) = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    thread: Thread | None = None
    metadata: MessageMetadata | None = None
    service_tier: ShortText | None = None
    inference_geo: ShortText | None = None
    container: ShortText | None = None
    diagnostics: JsonObject | None = None


# -- the answer ------------------------------------------------------------------------------------

StopReason = Literal[
    "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
]


class MessageTokensDetails(WholeModel):
    thinking_tokens: int


class MessageUsage(WholeModel):
    """``input_tokens`` are those that had to be computed; ``cache_read_input_tokens`` were found in
    the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails


class AnswerText(WholeModel):
    """Without ``citations``: there are none, and Vercel's client does not accept null for them."""

    type: Literal["text"] = "text"
    text: str


class AnswerThinking(WholeModel):
    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = ""


class AnswerToolUse(WholeModel):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = Annotated[AnswerText | AnswerThinking | AnswerToolUse, Field(discriminator="type")]


class AnswerMessage(WholeModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(WholeModel):
    input_tokens: int


class AnthropicErrorDetails(ResponseModel):
    """``error_code``: the code on which a client of the package acts."""

    error_code: str


class AnthropicErrorObject(ResponseModel):
    type: str
    message: str
    details: AnthropicErrorDetails | None = None


class AnthropicError(ResponseModel):
    """The body of every error of these routes, streams included."""

    type: Literal["error"]
    error: AnthropicErrorObject
    request_id: str | None = None
