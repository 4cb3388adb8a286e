"""Tools, tool choice and response formats of chat requests."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag

from quire.server.schemas.base import (
    OBJECT_SHAPE,
    TEXT_SHAPE,
    JsonObject,
    RequestModel,
    Text,
    text_or_object,
)

MAX_TOOLS = 128

FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionDefinition(RequestModel):
    """``parameters`` is a JSON schema; absent: a function without arguments."""

    name: FunctionName
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


def _function_alone(kind: object) -> object:
    if kind == "custom":
        raise ValueError(
            "'custom' is a tool whose input is free text, which is not served here: send a "
            "function with a text as its parameter"
        )
    return _no_hosted_tool(kind)


def _no_hosted_tool(kind: object) -> object:
    if isinstance(kind, str) and kind not in ("function", "custom"):
        raise ValueError(
            f"{kind[:64]!r} is a tool that another service runs, or whose schema it knows: send it "
            "as a function with a schema, and run its calls yourself"
        )
    return kind


FunctionKind = Annotated[Literal["function"], BeforeValidator(_function_alone)]
CustomKind = Annotated[Literal["custom"], BeforeValidator(_no_hosted_tool)]


class ToolDefinition(RequestModel):
    type: FunctionKind
    function: FunctionDefinition


class NamedFunction(RequestModel):
    name: FunctionName


class NamedToolChoice(RequestModel):
    type: Literal["function"]
    function: NamedFunction

    def names(self) -> set[str]:
        return {self.function.name}


class AllowedTools(RequestModel):
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[NamedToolChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)
    ]


class AllowedToolsChoice(RequestModel):
    """Only these of the tools may be called."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def names(self) -> set[str]:
        return {tool.function.name for tool in self.allowed_tools.tools}


_ALLOWED_TOOLS = Tag("<allowed_tools>")


def _choice_kind(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return _ALLOWED_TOOLS.tag if kind == "allowed_tools" else text_or_object(value)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], TEXT_SHAPE]
    | Annotated[NamedToolChoice, OBJECT_SHAPE]
    | Annotated[AllowedToolsChoice, _ALLOWED_TOOLS],
    Discriminator(
        _choice_kind,
        custom_error_type="shape",
        custom_error_message="must be none, auto, required or an object that names functions",
    ),
]


class JsonSchemaFormat(RequestModel):
    """``schema`` always constrains the answer; ``strict`` has no further effect."""

    name: FunctionName
    description: Text | None = None
    json_schema: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextResponse(RequestModel):
    type: Literal["text"]


class JsonObjectResponse(RequestModel):
    """``schema``: as llama.cpp and Together take it; ``json_schema`` is OpenAI's form."""

    type: Literal["json_object"]
    json_schema: JsonObject | None = Field(default=None, alias="schema")


class JsonSchemaResponse(RequestModel):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[
    TextResponse | JsonObjectResponse | JsonSchemaResponse, Field(discriminator="type")
]
