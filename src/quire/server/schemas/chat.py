"""``/v1/chat/completions``: the request, the whole answer, the chunks of a stream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from quire.server.schemas.base import FieldError, ResponseModel, ShortText
from quire.server.schemas.generation import (
    MAX_LOGPROBS,
    MAX_MAX_TOKENS,
    FinishReason,
    GenerationFields,
    Usage,
)
from quire.server.schemas.messages import Messages, TemplateVariables
from quire.server.schemas.prompt_fields import PromptFields, check_kept_tokens
from quire.server.schemas.tools import (
    MAX_TOOLS,
    AllowedToolsChoice,
    NamedToolChoice,
    ResponseFormat,
    ToolChoice,
    ToolDefinition,
)


def _text(modality: object) -> object:
    if isinstance(modality, str) and modality != "text":
        raise ValueError(f"{modality[:64]!r} is not served here: answers are text")
    return modality


Modality = Annotated[Literal["text"], BeforeValidator(_text)]


class ChatCompletionRequest(GenerationFields, PromptFields):
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=0, le=MAX_MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ShortText | None = None
    verbosity: ShortText | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    modalities: Annotated[list[Modality], Field(max_length=8)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs: true")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise FieldError(
                    "continue_final_message",
                    "continue_final_message excludes add_generation_prompt",
                )
            if self.messages[-1].role != "assistant":
                raise FieldError(
                    "continue_final_message",
                    "continue_final_message needs an assistant message at the end",
                )
        check_kept_tokens(self.truncate_prompt_tokens)
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError(
                "prompt_logprobs", "prompt_logprobs stand in a whole answer alone: leave stream out"
            )
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) != len(names):
            raise FieldError("tools", "two tools have the same name")
        choice = self.tool_choice
        if choice not in (None, "none", "auto") and not names:
            raise FieldError("tool_choice", "tool_choice asks for a call, but there are no tools")
        for name in (
            choice.names() if isinstance(choice, NamedToolChoice | AllowedToolsChoice) else ()
        ):
            if name not in names:
                raise FieldError(
                    "tool_choice", f"tool_choice names {name!r}, which is not in tools"
                )

    def with_allowed_tools(self) -> ChatCompletionRequest:
        """Return the request with only the tools that ``tool_choice`` allows: the model does not
        see the others."""
        choice = self.tool_choice
        if not isinstance(choice, AllowedToolsChoice):
            return self
        names = choice.names()
        tools = [tool for tool in self.tools or () if tool.function.name in names]
        return self.model_copy(update={"tools": tools, "tool_choice": choice.allowed_tools.mode})

    def limit(self) -> int | None:
        """Return ``max_completion_tokens``, or the older ``max_tokens``."""
        newer = self.max_completion_tokens
        return newer if newer is not None else self.max_tokens


class TopLogprob(ResponseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(ResponseModel):
    content: list[TokenLogprob] | None
    refusal: None = None


class Function(ResponseModel):
    name: str
    arguments: str


class ToolCall(ResponseModel):
    id: str
    type: Literal["function"]
    function: Function


class ChatMessage(ResponseModel):
    """``reasoning`` and ``reasoning_content`` are equal: clients read one or the other."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(ResponseModel):
    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class PromptLogprob(ResponseModel):
    """``rank`` is given only for tokens among the best that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


class ChatCompletion(ResponseModel):
    """``prompt_logprobs``: as in vLLM, for each token of the prompt its figures and those of the
    best tokens at its place, by token id; null for the first."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class FunctionDelta(ResponseModel):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(ResponseModel):
    """A part of call ``index``; only its first part has ``id``, ``type`` and ``name``."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(ResponseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(ResponseModel):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletionChunk(ResponseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
