"""Tools, tool choice and response formats, as chat requests carry them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints

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


class Tool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(RequestModel):
    name: FunctionName


class NamedToolChoice(RequestModel):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], TEXT_SHAPE]
    | Annotated[NamedToolChoice, OBJECT_SHAPE],
    Discriminator(
        text_or_object,
        custom_error_type="shape",
        custom_error_message="must be none, auto, required or an object that names a function",
    ),
]


class JsonSchemaFormat(RequestModel):
    """``schema`` constrains the answer always; ``strict`` changes nothing more."""

    name: FunctionName
    description: Text | None = None
    json_schema: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextResponse(RequestModel):
    type: Literal["text"]


class JsonObjectResponse(RequestModel):
    type: Literal["json_object"]


class JsonSchemaResponse(RequestModel):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[
    TextResponse | JsonObjectResponse | JsonSchemaResponse, Field(discriminator="type")
]

__all__ = [
    "MAX_TOOLS",
    "FunctionDefinition",
    "JsonObjectResponse",
    "JsonSchemaResponse",
    "NamedToolChoice",
    "ResponseFormat",
    "TextResponse",
    "Tool",
    "ToolChoice",
]
