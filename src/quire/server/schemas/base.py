"""The base classes of all bodies, and the bounded types of their fields.

Unknown fields of a request are refused, as by OpenAI's own service, and not dropped: a misspelt
``temprature`` or another server's extension would otherwise change the answer silently. Fields that
OpenAI documents but that have no effect here are listed and accepted (see ``generation``). Inside
*chat messages* unknown fields are ignored, because clients send messages back as they received
them.

A field that is ``null`` counts as absent, at every level: clients serialise whole objects of
options. Objects that a client defines itself (schemas, arguments, variables) keep their nulls.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, PydanticSerializationError

MAX_TEXT_CHARS = 4 << 20
MAX_PROMPT_TOKENS = 1 << 20
MAX_TOKEN_ID = (1 << 31) - 1

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
ShortText = Annotated[str, StringConstraints(max_length=1024)]
Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_CHARS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]
JsonObject = Annotated[dict[str, Any], Field(max_length=4096)]

MAX_FIELDS = 128
"""The most fields of an object whose fields are known."""


def counted_first(most: int) -> BeforeValidator:
    """Return a check of an object's length that comes before its members. Pydantic checks these
    first and has an error for each, which together take seconds and hundreds of megabytes."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticKnownError(
                "too_long",
                {"field_type": "Dictionary", "max_length": most, "actual_length": len(value)},
            )
        return value

    return BeforeValidator(check)


ShortTexts = Annotated[dict[ShortText, ShortText], Field(max_length=16), counted_first(16)]
"""What clients note about an object: names with values."""

# A field that takes several shapes: the value's own shape decides which one it is checked against,
# so that an error is about what the client meant.
TEXT_SHAPE = Tag("<text>")
LIST_SHAPE = Tag("<list>")
OBJECT_SHAPE = Tag("<object>")


def _text_or_list(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT_SHAPE.tag
    return LIST_SHAPE.tag if isinstance(value, list) else None


TextOrList = Discriminator(
    _text_or_list, custom_error_type="shape", custom_error_message="must be a string or a list"
)
"""The discriminator of unions of a ``TEXT_SHAPE`` and a ``LIST_SHAPE``."""


def text_or_object(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT_SHAPE.tag
    return OBJECT_SHAPE.tag if isinstance(value, dict | BaseModel) else None


class FieldError(ValueError):
    """A value that does not fit the rest of its body. ``param``: the field to change."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class SparseModel(BaseModel):
    """An object of a request: its fields that are null are absent. No coercion: ``"5"`` is no
    integer."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:  # each might be an error
            raise ValueError(f"an object has {len(value)} fields, at most {MAX_FIELDS} are read")
        if isinstance(value, dict) and None in value.values():
            return {name: one for name, one in value.items() if one is not None}
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema without null for these fields, so that the document agrees."""
        described = handler.resolve_ref_schema(handler(schema))
        required = described.get("required", ())
        for name, one in described.get("properties", {}).items():
            if name not in required and not _takes_null(one):
                described["properties"][name] = {"anyOf": [one, {"type": "null"}]}
        if described.get("additionalProperties") is False:
            described["additionalProperties"] = {"type": "null"}
        return described


def _takes_null(schema: JsonSchemaValue) -> bool:
    kinds = (schema, *schema.get("anyOf", ()))
    return any(kind.get("type") == "null" for kind in kinds)


class RequestModel(SparseModel):
    """A body, or a part of one, whose fields are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class EchoedModel(SparseModel):
    """A part of a request that clients copy from answers, of this server or of another."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class ResponseModel(BaseModel):
    """Serialised without the fields that were not set, so that ``null`` appears only on purpose."""

    model_config = ConfigDict(extra="forbid")

    def to_json(self) -> bytes:
        return _encoded(self, exclude_unset=True)


class WholeModel(ResponseModel):
    """Serialised with every field, for APIs that want ``null`` where there is no value."""

    def to_json(self) -> bytes:
        return _encoded(self)


def _encoded(body: BaseModel, exclude_unset: bool = False) -> bytes:
    try:
        return body.model_dump_json(exclude_unset=exclude_unset).encode()
    except PydanticSerializationError:
        # A program's result, log or error may have half of a surrogate pair, which only an escape
        # can express in UTF-8.
        return json.dumps(body.model_dump(mode="json", exclude_unset=exclude_unset)).encode()


class ErrorObject(ResponseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(ResponseModel):
    """The body of every error, on every route and inside streams."""

    error: ErrorObject


Responses = dict[int | str, dict[str, Any]]
"""The type of FastAPI's ``responses`` of a route."""

_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
    "required": ["data"],
}


def event_responses(what: str = "") -> Responses:
    """Return the documentation of a route that can answer with server-sent events; ``what``
    describes them. Each event is described (``itemSchema``, OpenAPI 3.2), as FastAPI does it."""
    described = {"description": what} if what else {}
    return {200: {"content": {"text/event-stream": {"itemSchema": _EVENT, **described}}}}


_DESCRIPTIONS: dict[int | str, str] = {
    400: "The request is not valid",
    401: "No API key, or an unknown one",
    403: "Host or Origin not served, or not allowed",
    404: "No such model, program or session",
    408: "The body did not arrive in time",
    409: "The program was cancelled, or has ended; or the session exists with other properties",
    413: "The body is too long",
    415: "The body is encoded, as content-encoding says",
    429: "Over a quota; see retry-after",
    500: "The program or the engine failed",
    503: "Loading, draining or full; see retry-after",
    "default": "Any other error",
}
ERRORS: Responses = {
    status: {"model": ErrorBody, "description": description}
    for status, description in _DESCRIPTIONS.items()
}
"""The error responses that any route may give, for the OpenAPI document. With a default one,
FastAPI does not add its own 422, which this server never sends."""
