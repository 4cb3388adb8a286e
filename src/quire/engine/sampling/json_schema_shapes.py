"""The type of value that each keyword of a JSON schema takes: a schema, a count, a text.

Owns the check of these values. Does not know what the keywords mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any

from quire.core.errors import GrammarError

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and 0 <= value < 1 << 63


def _is_step(value: Any) -> bool:
    return _is_number(value) and 0 < value < 1 << 32


def _is_bound(value: Any) -> bool:
    return _is_number(value) or isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_type(value: Any) -> bool:
    types = [value] if isinstance(value, str) else value
    return _is_names(types) and bool(types) and all(one in TYPES for one in types)


class KeywordShape(Enum):
    """Each member has its description for messages, and the test of a value."""

    SCHEMA = "a schema", lambda value: isinstance(value, (bool, dict))
    SCHEMAS = "a list of schemas", lambda value: isinstance(value, list)
    SCHEMAS_BY_NAME = "an object of schemas", lambda value: isinstance(value, dict)
    COUNT = "a whole number of 0 or more", _is_count
    NUMBER = "a number", _is_number
    STEP = "a number above 0 and below 2^32", _is_step
    BOUND = "a number, or a boolean as in draft 4", _is_bound
    FLAG = "true or false", lambda value: isinstance(value, bool)
    TEXT = "a text", lambda value: isinstance(value, str)
    NAMES = "a list of texts", _is_names
    VALUES = "a list of values, not empty", lambda value: isinstance(value, list) and bool(value)
    TYPE = f"one of {', '.join(TYPES)}, or a list of some of them", _is_type

    def __init__(self, text: str, fits: Callable[[Any], bool]) -> None:
        self._text = text
        self._fits = fits

    def checked(self, value: Any, place: str) -> Any:
        """The value at ``place``; a count as an ``int``.

        Raises:
            GrammarError: it has another shape.
        """
        if self is KeywordShape.COUNT and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not self._fits(value):
            raise GrammarError(f"{place[:400]}: must be {self._text}, not {found(value)}")
        return value


SHAPES = {
    **dict.fromkeys(("items", "additionalItems", "additionalProperties"), KeywordShape.SCHEMA),
    "propertyNames": KeywordShape.SCHEMA,
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), KeywordShape.SCHEMAS),
    **dict.fromkeys(
        ("properties", "patternProperties", "$defs", "definitions"), KeywordShape.SCHEMAS_BY_NAME
    ),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), KeywordShape.COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), KeywordShape.COUNT),
    **dict.fromkeys(("minimum", "maximum"), KeywordShape.NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), KeywordShape.BOUND),
    "multipleOf": KeywordShape.STEP,
    "uniqueItems": KeywordShape.FLAG,
    **dict.fromkeys(
        ("$ref", "$schema", "$id", "id", "$anchor", "pattern", "format"), KeywordShape.TEXT
    ),
    "required": KeywordShape.NAMES,
    "enum": KeywordShape.VALUES,
    "type": KeywordShape.TYPE,
}


def found(value: Any) -> str:
    """The text of ``value`` for a message: truncated, and distinguishable from other types."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
