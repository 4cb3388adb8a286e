"""The small bodies: models, tokenizing, health."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from quire.server.schemas.base import (
    FieldError,
    Name,
    RequestModel,
    ResponseModel,
    Text,
    TokenIds,
)
from quire.server.schemas.messages import Messages, TemplateVariables
from quire.server.schemas.tools import MAX_TOOLS, ToolDefinition


class Model(ResponseModel):
    """``max_model_len`` counts prompt and answer together. ``parent``: the model of an adapter."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(ResponseModel):
    object: Literal["list"]
    data: list[Model]


_OF_CHAT = ("add_generation_prompt", "chat_template_kwargs", "continue_final_message", "tools")


def check_prompt_fields(body: RequestModel, *, is_chat: bool) -> None:
    """Raise ``FieldError`` if a prompt has a field of the template, which only a chat has."""
    for name in () if is_chat else _OF_CHAT:
        if name in body.model_fields_set and getattr(body, name):
            raise FieldError(
                name, f"{name} is for the template of messages, and prompt is no chat: leave it out"
            )


class TokenizeRequest(RequestModel):
    """Either ``prompt`` or ``messages``, which are rendered by the model's chat template first."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        check_prompt_fields(self, is_chat=self.messages is not None)
        if self.continue_final_message:
            if self.messages is None or self.messages[-1].role != "assistant":
                raise FieldError(
                    "continue_final_message",
                    "continue_final_message needs an assistant message at the end",
                )
            if "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt:
                raise FieldError(
                    "continue_final_message",
                    "continue_final_message excludes add_generation_prompt",
                )
        return self


class Tokenized(ResponseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestModel):
    model: Name | None = None
    tokens: TokenIds


class Detokenized(ResponseModel):
    prompt: str


class EngineStatus(ResponseModel):
    state: str
    detail: str
    restarts: int
    progress: float


class SandboxStatus(ResponseModel):
    """A process of untrusted programs. ``state``: idle, starting, ready or paused."""

    state: str
    detail: str
    losses: int


class Version(ResponseModel):
    version: str


class Health(ResponseModel):
    """``status``: ok, loading, draining or unhealthy. ``models``: whether an engine of each model
    can do work; while those of one are lost or load, the other models are served."""

    status: Literal["ok", "loading", "draining", "unhealthy"]
    detail: str
    models: dict[str, bool]
    engines: dict[str, EngineStatus]
    sandbox: dict[str, SandboxStatus]
