"""JSON schemas of structs, for tools."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from .structs import Meta, Struct


def schema_components(kinds: Any, *, ref_template: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """References to the schemas of ``kinds``, and the definitions to which they refer."""
    definitions: dict[str, Any] = {}
    references = tuple(_schema(kind, ref_template, definitions) for kind in kinds)
    return references, definitions


_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _schema(kind: Any, template: str, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        notes = [note.description for note in arguments[1:] if isinstance(note, Meta)]
        schema = _schema(arguments[0], template, definitions)
        return {"description": notes[0], **schema} if notes else schema
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if kind is None or kind is types.NoneType:
        return {"type": "null"}
    if kind is Any:
        return {}
    if origin is Literal:
        return {"enum": sorted(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(part, template, definitions) for part in arguments]}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": sorted(member.value for member in kind)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct_schema(kind, template, definitions)
    return _container_schema(kind, origin, arguments, template, definitions)


def _container_schema(
    kind: Any, origin: Any, arguments: Any, template: str, definitions: dict[str, Any]
) -> dict[str, Any]:
    base = origin or kind
    if base in (list, set, frozenset, tuple):
        schema: dict[str, Any] = {"type": "array"}
        if arguments:
            schema["items"] = _schema(arguments[0], template, definitions)
        return schema
    if base is dict:
        schema = {"type": "object"}
        if arguments:
            schema["additionalProperties"] = _schema(arguments[1], template, definitions)
        return schema
    raise TypeError(f"type {kind!r} has no JSON schema here")


def _struct_schema(
    kind: type[Struct], template: str, definitions: dict[str, Any]
) -> dict[str, Any]:
    reference = {"$ref": template.format(name=kind.__name__)}
    if kind.__name__ in definitions:
        return reference
    schema: dict[str, Any] = {"title": kind.__name__, "type": "object", "properties": {}}
    definitions[kind.__name__] = schema
    hints = typing.get_type_hints(kind, include_extras=True)
    required = []
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        described = _schema(hints[entry.name], template, definitions)
        if entry.default is not dataclasses.MISSING:
            described["default"] = entry.default
        elif entry.default_factory is dataclasses.MISSING:
            required.append(entry.name)
        schema["properties"][entry.name] = described
    schema["required"] = required
    if kind.__struct_strict__:
        schema["additionalProperties"] = False
    return reference
