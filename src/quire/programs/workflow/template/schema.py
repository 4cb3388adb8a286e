"""JSON Schemas of an application's queries: of their inputs, results and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from quire.programs.services.documents import KINDS
from quire.programs.workflow.components.documents import MAX_NEIGHBOURS
from quire.programs.workflow.components.model import MODES
from quire.programs.workflow.documents import MAX_CHARS, MAX_DOCUMENTS
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.template.app import App

JsonSchema = dict[str, Any]

_TEXT = MappingProxyType({"type": "string"})
_COUNT = MappingProxyType({"type": "integer", "minimum": 1})
_FLAG = MappingProxyType({"type": "boolean"})

SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "answer_after": _TEXT,
        "chunk_size": _COUNT,
        "combine_prompt": _TEXT,
        "context": _TEXT,
        "equals": _TEXT,
        "last_first": _FLAG,
        "max_tokens": _COUNT,
        "model": _TEXT,
        "neighbours": {"type": "integer", "minimum": 1, "maximum": MAX_NEIGHBOURS},
        "overlap": {"type": "integer", "minimum": 0},
        "prompt": _TEXT,
        "refine_prompt": _TEXT,
        "result": _TEXT,
        "schema": {"type": "object"},
        "separator": _TEXT,
        "synthesis": {"enum": list(MODES)},
        "system": _TEXT,
        "top_k": _COUNT,
        "top_n": _COUNT,
        "truncate": _FLAG,
    }
)
"""The schemas of the settings that a query may change, for all components."""

_DOCUMENT: JsonSchema = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "text": {"type": "string", "minLength": 1},
        "base64": {"type": "string", "minLength": 1},
        "kind": {"enum": list(KINDS)},
    },
    "required": ["name"],
    "oneOf": [{"required": ["text"]}, {"required": ["base64"]}],
    "additionalProperties": False,
}
_VALUES: Mapping[ValueType, JsonSchema] = MappingProxyType(
    {
        ValueType.TEXT: {"type": "string", "minLength": 1},
        ValueType.TEXTS: {
            "type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1
        },
        ValueType.DOCUMENTS: {
            "type": "array", "items": _DOCUMENT, "minItems": 1, "maxItems": MAX_DOCUMENTS,
            "description": f"At most {MAX_CHARS} characters in all.",
        },
        ValueType.BOOLEAN: {"type": "boolean"},
        ValueType.OBJECT: {"type": "object"},
        ValueType.VECTORS: {
            "type": "array", "items": {"type": "array", "items": {"type": "number"}}
        },
    }
)  # fmt: skip


def query_schema(app: App) -> JsonSchema:
    """Return the schema of a query's inputs by name, all of which are required."""
    inputs = {name: _VALUES[kind] for name, kind in app.query_inputs.items()}
    return _object(inputs) | {"required": list(inputs)}


def results_schema(app: App) -> JsonSchema:
    """Return the schema of the results by name."""
    results: JsonSchema = {}
    for name, kind in app.results.items():
        bounds = ("minLength", "minItems", "maxItems", "description")
        results[name] = {key: one for key, one in _VALUES[kind].items() if key not in bounds}
    return _object(results) | {"required": list(results)}


def config_schema(app: App) -> JsonSchema:
    """Return the schema of the settings that a query may change, by component, with the
    application's values as ``default``."""
    components: JsonSchema = {}
    for node in app.nodes:
        known = app.component(node).changeable(node)
        if known:
            components[node.name] = _object(
                {key: _setting(key, node.config) for key in sorted(known)}
            )
    return _object(components)


def _setting(key: str, config: Mapping[str, Any]) -> JsonSchema:
    default = {"default": config[key]} if config.get(key) is not None else {}
    return {**SETTINGS.get(key, {}), **default}


def _object(properties: JsonSchema) -> JsonSchema:
    return {"type": "object", "properties": properties, "additionalProperties": False}
