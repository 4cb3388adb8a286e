"""``msgspec.json``: texts to values and back."""

from __future__ import annotations

import json
import typing
from typing import Any

from .conversion import convert
from .schemas import schema_components
from .structs import DecodeError, to_builtins


def encode(value: Any) -> bytes:
    return _dumps(value).encode()


def _dumps(value: Any) -> str:
    return json.dumps(value, default=to_builtins, allow_nan=False, separators=(",", ":"))


def decode(text: bytes | str, *, type: Any = Any, strict: bool = True) -> Any:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise DecodeError(f"JSON is malformed: {exc}") from exc
    if not strict and isinstance(value, dict):
        value = _loosened(value, type)
    return convert(value, type)


def _loosened(value: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Convert numbers and booleans that were written as strings, as models often do."""
    hints = typing.get_type_hints(kind)
    return {
        name: _loose(entry, hints.get(name)) if isinstance(entry, str) else entry
        for name, entry in value.items()
    }


def _loose(text: str, kind: Any) -> Any:
    if kind is bool and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


__all__ = ["decode", "encode", "schema_components"]
