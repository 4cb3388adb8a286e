"""The grammar that a request's tools, tool choice and formats require.

Owns the translation; must not compile (``grammar_check`` does). A forced call is constrained to the
format that ``programs/chat/hermes_calls.py`` parses, whatever the model's own format is. It can
therefore always be parsed: the name is one of the tools', and the arguments match the tool's
schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from quire.core.decoding import GrammarSpec
from quire.programs.chat import CALL_END, CALL_START
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.generation import StructuredOutputs
from quire.server.schemas.tools import (
    JsonObjectResponse,
    JsonSchemaResponse,
    NamedToolChoice,
    ResponseFormat,
    ToolDefinition,
)

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON without optional spaces: a model that may add spaces sometimes adds them for ever."""


def chat_grammar(request: ChatCompletionRequest) -> tuple[GrammarSpec | None, str]:
    """Return the grammar of an answer, if any, and the request field that it comes from (for error
    messages)."""
    forced = forced_tools(request)
    if forced:
        many = request.parallel_tool_calls is not False and request.tool_choice == "required"
        return _lark(f"start: {_calls(many)}", call_schema(forced)), "tools"
    if request.structured_outputs is not None:
        return structured_grammar(request.structured_outputs), "structured_outputs"
    schema = _format_schema(request.response_format)
    if schema is None:
        return None, ""
    if request.tools and request.tool_choice != "none":
        many = request.parallel_tool_calls is not False
        start = f"start: {_calls(many)} | answer\nanswer: %json {json.dumps(schema)}"
        return _lark(start, call_schema(request.tools)), "response_format"
    return GrammarSpec("json_schema", json.dumps(schema)), "response_format"


def forced_tools(request: ChatCompletionRequest) -> list[ToolDefinition]:
    """Return the tools of which one must be called; empty if no call is required."""
    choice, tools = request.tool_choice, request.tools or []
    if isinstance(choice, NamedToolChoice):
        return [tool for tool in tools if tool.function.name == choice.function.name]
    return tools if choice == "required" else []


def structured_grammar(outputs: StructuredOutputs) -> GrammarSpec:
    """Return the grammar of vLLM's ``structured_outputs``."""
    if outputs.json_schema is not None:
        return GrammarSpec("json_schema", json.dumps(_spaced(outputs.json_schema, strict=True)))
    if outputs.regex is not None:
        return GrammarSpec("regex", outputs.regex)
    if outputs.choice is not None:
        choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in outputs.choice)
        return GrammarSpec("lark", f"start: {choices}")
    assert outputs.grammar is not None, "exactly one field is set"
    return GrammarSpec("lark", outputs.grammar)


def _format_schema(chosen: ResponseFormat | None) -> dict[str, Any] | None:
    if isinstance(chosen, JsonObjectResponse):
        given = chosen.json_schema
        return _spaced({"type": "object"} if given is None else given, strict=True)
    if isinstance(chosen, JsonSchemaResponse):
        schema = chosen.json_schema.json_schema
        return _spaced({} if schema is None else schema, strict=bool(chosen.json_schema.strict))
    return None


def _spaced(schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """Return the schema with ``_SPACING``. ``strict``: a keyword that cannot be enforced is an
    error; otherwise it is ignored."""
    return {**schema, "x-guidance": {**_SPACING, "lenient": not strict}}


def _lark(start: str, call: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("lark", f"{start}\ncall: %json {json.dumps(call)}")


def _calls(many: bool) -> str:
    one = f"{json.dumps(CALL_START)} call {json.dumps(CALL_END)}"
    return f'{one} ("\\n" {one})*' if many else one


def call_schema(tools: Sequence[ToolDefinition]) -> dict[str, Any]:
    """Return the schema of one call's JSON: ``{"name": ..., "arguments": ...}`` for one of the
    tools.

    Each tool's parameters move under ``$defs``, together with the targets of their own references.
    An object that lists its properties is closed unless it says otherwise: no tool expects
    properties that its schema merely does not forbid.
    """
    definitions: dict[str, Any] = {}
    calls = []
    for index, tool in enumerate(tools):
        place = f"#/$defs/tool{index}"
        parameters = tool.function.parameters or {"type": "object", "additionalProperties": False}
        definitions[f"tool{index}"] = _moved(_closed(parameters), place)
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    "arguments": {"$ref": place},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    strict = all(tool.function.strict for tool in tools)
    return _spaced({"anyOf": calls, "$defs": definitions}, strict=strict)


_OPEN_KEYWORDS = frozenset(
    {
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
        "allOf",
        "anyOf",
        "oneOf",
    }
)


def _closed(schema: Any) -> Any:
    """Return ``schema`` with its plain objects closed, and those in its properties and items."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    properties = schema.get("properties")
    if isinstance(properties, dict):
        closed["properties"] = {name: _closed(value) for name, value in properties.items()}
        if not _OPEN_KEYWORDS & schema.keys():
            closed["additionalProperties"] = False
    return closed


def _moved(schema: Any, place: str) -> Any:
    """Return ``schema`` with references to its own root turned into references to ``place``."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    target = schema.get("$ref")
    if isinstance(target, str) and (target == "#" or target.startswith("#/")):
        moved["$ref"] = place + target[1:]
    return moved
