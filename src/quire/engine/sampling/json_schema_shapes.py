"""What stands behind each keyword of a JSON schema: a schema, a count, a text.

Owns the check of these values. Knows nothing of what the keywords mean.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from quire.core.errors import GrammarError

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class Shape(Enum):
    """Its value says it in words."""

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
        """``value``, which stands at ``place``; a count as an ``int``.

        Raises:
            GrammarError: it is something else.
        """
        if self is Shape.COUNT and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not self._fits(value):
            raise GrammarError(f"{place[:400]}: must be {self.value}, not {found(value)}")
        return value

    def _fits(self, value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        match self:
            case Shape.SCHEMA:
                return isinstance(value, (bool, dict))
            case Shape.SCHEMAS:
                return isinstance(value, list)
            case Shape.SCHEMAS_BY_NAME:
                return isinstance(value, dict)
            case Shape.COUNT:
                return is_number and isinstance(value, int) and 0 <= value < 1 << 63
            case Shape.NUMBER:
                return is_number
            case Shape.STEP:
                return is_number and 0 < value < 1 << 32
            case Shape.BOUND:
                return is_number or isinstance(value, bool)
            case Shape.FLAG:
                return isinstance(value, bool)
            case Shape.TEXT:
                return isinstance(value, str)
            case Shape.NAMES:
                return _is_names(value)
            case Shape.VALUES:
                return isinstance(value, list) and bool(value)
            case Shape.TYPE:
                types = [value] if isinstance(value, str) else value
                return _is_names(types) and bool(types) and all(one in TYPES for one in types)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


SHAPES = {
    **dict.fromkeys(("items", "additionalItems", "additionalProperties"), Shape.SCHEMA),
    "propertyNames": Shape.SCHEMA,
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), Shape.SCHEMAS),
    **dict.fromkeys(
        ("properties", "patternProperties", "$defs", "definitions"), Shape.SCHEMAS_BY_NAME
    ),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), Shape.COUNT),
    **dict.fromkeys(("minProperties", "maxProperties"), Shape.COUNT),
    **dict.fromkeys(("minimum", "maximum"), Shape.NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), Shape.BOUND),
    "multipleOf": Shape.STEP,
    "uniqueItems": Shape.FLAG,
    **dict.fromkeys(("$ref", "$schema", "$id", "id", "$anchor", "pattern", "format"), Shape.TEXT),
    "required": Shape.NAMES,
    "enum": Shape.VALUES,
    "type": Shape.TYPE,
}


def found(value: Any) -> str:
    """``value`` in a message: cut, and told from other types."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
