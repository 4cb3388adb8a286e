"""The type of value that each keyword of a JSON schema takes: a schema, a count, a text.

Owns the check of these values. Does not know what the keywords mean.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from quire.core.errors import GrammarError

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class KeywordShape(Enum):
    """Each member's value describes it in messages."""

    SCHEMA = "a schema"
    SCHEMAS = "a list of schemas"
    SCHEMAS_BY_NAME = "an object of schemas"
    COUNT = "a whole number of 0 or more"
    NUMBER = "a number"
    STEP = "a number above 0 and below 2^32"
    BOUND = "a number, or a boolean as in draft 4"
    FLAG = "true or false"
    TEXT = "a text"
    NAMES = "a list of texts"
    VALUES = "a list of values, not empty"
    TYPE = f"one of {', '.join(TYPES)}, or a list of some of them"

    def checked(self, value: Any, place: str) -> Any:
        """The value at ``place``; a count as an ``int``.

        Raises:
            GrammarError: it has another shape.
        """
        if self is KeywordShape.COUNT and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not self._fits(value):
            raise GrammarError(f"{place[:400]}: must be {self.value}, not {found(value)}")
        return value

    def _fits(self, value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        match self:
            case KeywordShape.SCHEMA:
                return isinstance(value, (bool, dict))
            case KeywordShape.SCHEMAS:
                return isinstance(value, list)
            case KeywordShape.SCHEMAS_BY_NAME:
                return isinstance(value, dict)
            case KeywordShape.COUNT:
                return is_number and isinstance(value, int) and 0 <= value < 1 << 63
            case KeywordShape.NUMBER:
                return is_number
            case KeywordShape.STEP:
                return is_number and 0 < value < 1 << 32
            case KeywordShape.BOUND:
                return is_number or isinstance(value, bool)
            case KeywordShape.FLAG:
                return isinstance(value, bool)
            case KeywordShape.TEXT:
                return isinstance(value, str)
            case KeywordShape.NAMES:
                return _is_names(value)
            case KeywordShape.VALUES:
                return isinstance(value, list) and bool(value)
            case KeywordShape.TYPE:
                types = [value] if isinstance(value, str) else value
                return _is_names(types) and bool(types) and all(one in TYPES for one in types)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


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
