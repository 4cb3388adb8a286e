"""``/v1/responses``: the request, the response object, and requests about stored ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from quire.server.schemas.base import (
    TEXT_SHAPE,
    FieldError,
    JsonObject,
    Name,
    RequestModel,
    ShortText,
    Text,
    WholeModel,
)
from quire.server.schemas.generation import (
    MAX_LOGPROBS,
    MAX_MAX_TOKENS,
    AcceptedFields,
    IdentityFields,
    SamplingFields,
)
from quire.server.schemas.messages import TemplateVariables
from quire.server.schemas.response_items import OutputItem, ResponseInput
from quire.server.schemas.tools import MAX_TOOLS, FunctionKind, FunctionName

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Include = Literal[
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class FunctionTool(RequestModel):
    """``parameters`` is a JSON schema; absent: a function without arguments."""

    type: FunctionKind
    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    output_schema: JsonObject | None = None


class FunctionChoice(RequestModel):
    type: Literal["function"]
    name: FunctionName


class ResponseAllowedTools(RequestModel):
    """Only these tools may be called; the model does not see the others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[FunctionChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    ]


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT_SHAPE.tag
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if isinstance(kind, str) else None


ToolChoiceField = Annotated[
    Annotated[Literal["none", "auto", "required"], TEXT_SHAPE]
    | Annotated[FunctionChoice, Tag("<function>")]
    | Annotated[ResponseAllowedTools, Tag("<allowed_tools>")],
    Discriminator(
        _choice_kind,
        custom_error_type="shape",
        custom_error_message="must be none, auto, required or an object of type function or "
        "allowed_tools: no other tools run here",
    ),
]


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    type: Literal["json_object"]


class JsonSchemaTextFormat(RequestModel):
    """The schema always constrains the answer."""

    type: Literal["json_schema"]
    name: FunctionName
    json_schema: JsonObject = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class TextField(RequestModel):
    format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaTextFormat, Field(discriminator="type")]
        | None
    ) = None
    verbosity: ShortText | None = None


class ReasoningField(RequestModel):
    """``effort`` is passed to the model's template. There are no summaries: the reasoning itself is
    shown."""

    effort: ShortText | None = None
    summary: ShortText | None = None
    generate_summary: ShortText | None = None


class ResponseStreamOptions(RequestModel):
    """Accepted without effect."""

    include_obfuscation: bool | None = None


class ConversationField(RequestModel):
    id: ShortText


ConversationInput = ShortText | ConversationField


def _id_of(value: object) -> object:
    return {"id": value} if isinstance(value, str) else value


class ConversationId(WholeModel):
    id: str


class InputTokensRequest(RequestModel):
    """The parts of a prompt. ``parallel_tool_calls`` and ``truncation`` do not change its
    tokens."""

    input: ResponseInput | None = None
    model: Name | None = Field(None, description="Absent: the node's default model")
    instructions: Text | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    previous_response_id: ShortText | None = None
    conversation: (
        Annotated[
            ConversationField, BeforeValidator(_id_of, json_schema_input_type=ConversationInput)
        ]
        | None
    ) = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _one_history(self) -> InputTokensRequest:
        if self.conversation is not None and self.previous_response_id is not None:
            raise FieldError(
                "previous_response_id", "conversation and previous_response_id exclude each other"
            )
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = [tool.name for tool in self.tools or ()]
        if len(set(names)) != len(names):
            raise FieldError("tools", "two tools have the same name")
        choice = self.tool_choice
        if choice not in (None, "none", "auto") and not names:
            raise FieldError("tool_choice", "tool_choice asks for a call, but there are no tools")
        if isinstance(choice, FunctionChoice | ResponseAllowedTools):
            chosen = [choice] if isinstance(choice, FunctionChoice) else choice.tools
            for tool in chosen:
                if tool.name not in names:
                    raise FieldError(
                        "tool_choice", f"tool_choice names {tool.name!r}, which is not in tools"
                    )


class InputTokenCount(WholeModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponsesRequest(InputTokensRequest, SamplingFields, IdentityFields, AcceptedFields):
    """``store`` defaults to true, as in OpenAI's service."""

    max_tool_calls: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_MAX_TOKENS)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    include: Annotated[list[Include], Field(max_length=16)] | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None

    @model_validator(mode="after")
    def _stored(self) -> ResponsesRequest:
        if self.background and self.store is False:
            raise FieldError("store", "background needs store: the response is read later")
        return self

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())


class ResponseError(WholeModel):
    code: str
    message: str


class IncompleteDetails(WholeModel):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(WholeModel):
    """``cached_tokens`` were found in the prefix cache and not computed again;
    ``cache_write_tokens`` were computed and fill pages that are found from now on."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(WholeModel):
    reasoning_tokens: int


class ResponseUsage(WholeModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(WholeModel):
    """One response, finished or not. The fields of the request are repeated."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    background: bool
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any]
    safety_identifier: str | None = None
    service_tier: str
    store: bool
    temperature: float | None = None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None = None
    truncation: Literal["auto", "disabled"]
    user: str | None = None


class DeletedResponse(WholeModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(WholeModel):
    """Items of one response's own request."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
