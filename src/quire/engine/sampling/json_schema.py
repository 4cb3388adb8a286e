"""Translates a JSON schema into the form that llguidance enforces.

Owns the table of keywords: each is enforced by the library unchanged, rewritten here, an annotation
without effect, or refused with its place in the schema. (The library itself ignores keywords that
it does not know.) Must not compile, and must not widen what a schema allows: a rewritten schema
allows the same values or, where the library cannot express them, fewer.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, NoReturn

from quire.core.errors import GrammarError
from quire.engine.sampling.json_schema_numbers import keep_bounds
from quire.engine.sampling.json_schema_shapes import SHAPES, KeywordShape, found

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

OBEYED = frozenset(
    {
        *("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "$defs", "definitions"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("properties", "patternProperties", "additionalProperties", "required", "maxProperties"),
        *("minLength", "maxLength", "pattern", "multipleOf", "$schema", "$id", "id", "$anchor"),
    }
)
"""Enforced by the library unchanged."""

REWRITTEN = frozenset(
    {*_BOUNDS, "format", "uniqueItems", "minProperties", "propertyNames", "additionalItems"}
)
"""Rewritten here; some of their values are refused."""

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "$comment"),
        *("readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        *("discriminator", "externalDocs", "xml", "$vocabulary"),
    }
)
"""Without effect on which values are valid; so are keywords that begin with ``x-``."""

REFUSED = {
    "contains": "describe the items with prefixItems or items",
    "minContains": "describe the items with prefixItems or items",
    "maxContains": "describe the items with prefixItems or items",
    "unevaluatedItems": "write items",
    "unevaluatedProperties": "write additionalProperties beside the properties that it closes",
    "dependentRequired": "write the combinations as an anyOf of objects",
    "dependentSchemas": "write the combinations as an anyOf of objects",
    "dependencies": "write the combinations as an anyOf of objects",
    "if": "write the cases as an anyOf",
    "then": "write the cases as an anyOf",
    "else": "write the cases as an anyOf",
    "not": "say what is allowed, with enum, pattern or anyOf",
    "$dynamicRef": "write $ref",
    "$dynamicAnchor": "write $anchor, or a name under $defs",
    "$recursiveRef": "write $ref",
    "$recursiveAnchor": "write $ref to the root, #",
    "nullable": 'write "null" as one of the types',
}
"""Refused, each with the alternative to write instead."""

_FORMATS = frozenset(["date", "duration", "hostname", "ipv4", "ipv6", "uuid", "uri"])
"""Enforced by the library unchanged."""

_NARROWED_FORMATS = {
    "time": r"^..:..:[0-5]",
    "date-time": r"^.{17}[0-5]",
    "email": r"^[^@]{1,64}@[^@]{1,255}$",
}
"""Formats with the restrictions added here: leap seconds only at minute 59, bounded local parts."""

_INTEGER_FORMATS = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_NUMBER_FORMATS = frozenset({"float", "double"})

_LARGEST_NUMBER = 10**300
"""Well within the range of doubles."""

_PLAIN_NAMES: tuple[Any, ...] = (True, {}, {"type": "string"})
"""Schemas of property names that allow every name."""


def read_schema(source: str) -> str:
    """The schema in the form for the library.

    Raises:
        GrammarError: it is not JSON, not a schema, or has a keyword that cannot be enforced.
    """
    try:
        schema = json.loads(source, parse_constant=_no_number)
        return json.dumps(_Reader(lenient=_is_lenient(schema)).read(schema, "#"))
    except ValueError as exc:
        raise GrammarError(f"the JSON schema is not valid JSON: {exc}; correct it") from exc
    except RecursionError as exc:
        raise GrammarError(
            "the JSON schema is not valid JSON, or nested too deep: name its parts under $defs"
        ) from exc


class _Reader:
    """``lenient``: keywords that cannot be enforced are dropped instead of refused."""

    def __init__(self, *, lenient: bool) -> None:
        self._lenient = lenient

    def read(self, schema: Any, place: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(f"{place}: a schema is an object or boolean, not {found(schema)}")
        read: dict[str, Any] = {}
        for keyword, value in schema.items():
            if self._is_kept(keyword, place):
                read[keyword] = self._value(keyword, value, f"{place}/{_escaped(keyword)}")
        self._arrays(read, place)
        self._objects(read, place)
        self._format(read, place)
        if any(keyword in read for keyword in _BOUNDS):
            keep_bounds(read, place)
        return read

    def _is_kept(self, keyword: str, place: str) -> bool:
        if keyword in OBEYED or keyword in REWRITTEN or keyword == "x-guidance":
            return True
        if keyword in ANNOTATIONS or keyword.startswith("x-"):
            return False
        if keyword in REFUSED:
            self._refuse(place, keyword, "answers cannot be held to it", REFUSED[keyword])
            return False
        near = difflib.get_close_matches(keyword, [*OBEYED, *REWRITTEN], n=1)
        remedy = f"write {near[0]}" if near else "leave it out"
        self._refuse(place, keyword, "no keyword of JSON Schema", remedy)
        return True  # a reference may point into it

    def _value(self, keyword: str, value: Any, place: str) -> Any:
        if keyword in ("const", "enum"):
            _check_exact(value, place)
        shape = SHAPES.get(keyword)
        if shape is None:
            return value
        if keyword == "items" and isinstance(value, list):  # before draft 2020-12
            shape = KeywordShape.SCHEMAS
        value = shape.checked(value, place)
        match shape:
            case KeywordShape.SCHEMA:
                return self.read(value, place)
            case KeywordShape.SCHEMAS:
                return [self.read(part, f"{place}/{index}") for index, part in enumerate(value)]
            case KeywordShape.SCHEMAS_BY_NAME:
                return {
                    name: self.read(part, f"{place}/{_escaped(name)}")
                    for name, part in value.items()
                }
        return value

    def _arrays(self, schema: dict[str, Any], place: str) -> None:
        unique = schema.pop("uniqueItems", False)
        if unique and schema.get("maxItems", 2) > 1:
            self._refuse(
                place,
                "uniqueItems",
                "answers cannot be held to it",
                "leave it out and drop repeated items, or write an object with a property each",
            )
        rest = schema.get("additionalItems")
        if rest is not None and not isinstance(schema.get("items"), list):
            if "prefixItems" in schema:  # the library would ignore prefixItems
                self._refuse(place, "additionalItems", "not read beside prefixItems", "write items")
            del schema["additionalItems"]

    def _objects(self, schema: dict[str, Any], place: str) -> None:
        if schema.pop("propertyNames", True) not in _PLAIN_NAMES:
            self._refuse(
                place, "propertyNames", "answers cannot be held to it", "write patternProperties"
            )
        # Additional names may repeat in the output, so only the first of them is certain to count.
        sure = len(set(schema.get("required", ()))) + 1
        if schema.get("minProperties", 0) > sure:
            self._refuse(
                place,
                "minProperties",
                f"answers cannot be held to more than {sure} here, for names may repeat",
                "name more properties in required",
            )
            del schema["minProperties"]

    def _format(self, schema: dict[str, Any], place: str) -> None:
        name = schema.pop("format", None)
        if name is None:
            return
        is_text = "string" in _types(schema)
        if name in _FORMATS or name in _NARROWED_FORMATS:
            schema["format"] = name
            if pattern := _NARROWED_FORMATS.get(name):
                schema["allOf"] = [*schema.get("allOf", ()), {"pattern": pattern}]
        elif not is_text and name in _INTEGER_FORMATS:
            least, most = _INTEGER_FORMATS[name]
            schema["allOf"] = [
                *schema.get("allOf", ()),
                self.read({"minimum": least, "maximum": most}, place),
            ]
        elif is_text or name not in _NUMBER_FORMATS:
            self._refuse(
                place,
                "format",
                f"{json.dumps(name)[:100]} is not known",
                f"write one of {', '.join(sorted(_FORMATS | _NARROWED_FORMATS.keys()))}, "
                "or a pattern",
            )

    def _refuse(self, place: str, keyword: str, why: str, remedy: str) -> None:
        if not self._lenient:
            raise GrammarError(f"{place[:400]}: {keyword[:100]}: {why}: {remedy}")


_IN_LARK = re.compile(
    r'"(?:\\.|[^"\\\n])*"' r"|//[^\n]*" r"|/(?:\\.|[^/\\\n])+/" r"|(?P<embedded>%json\s*)"
)
"""Texts, comments and regular expressions, which are skipped, and the keyword before a schema."""


def read_schemas_in_lark(source: str) -> str:
    """The Lark grammar ``source`` with its embedded schemas in the form for the library.

    Raises:
        GrammarError: see ``read_schema``.
    """
    parts: list[str] = []
    at = 0
    for start, end in _embedded(source):
        parts += [source[at:start], read_schema(source[start:end])]
        at = end
    return "".join([*parts, source[at:]])


def _embedded(source: str) -> list[tuple[int, int]]:
    """The start and end of each embedded schema."""
    places: list[tuple[int, int]] = []
    at = 0
    while (word := _IN_LARK.search(source, at)) is not None:
        at = word.end()
        if word["embedded"] is None:
            continue
        try:
            _, end = json.JSONDecoder().raw_decode(source, at)
        except (ValueError, RecursionError) as exc:
            raise GrammarError(f"the schema behind %json is not valid JSON: {exc}") from exc
        places.append((at, end))
        at = end
    return places


def _is_lenient(schema: Any) -> bool:
    guidance = schema.get("x-guidance") if isinstance(schema, dict) else None
    return isinstance(guidance, dict) and guidance.get("lenient") is True


def _check_exact(value: Any, place: str) -> None:
    """Refuse an integer that is not exact as a double, because the library would write its
    neighbour."""
    if isinstance(value, (int, float)) and (abs(value) > _LARGEST_NUMBER or float(value) != value):
        raise GrammarError(
            f"{place[:400]}: {found(value)} is no double-precision number and would be rounded: "
            "write it as a string"
        )
    if isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            _check_exact(part, place)


def _types(schema: dict[str, Any]) -> list[str]:
    """The types that ``type`` allows."""
    types = schema.get("type", ["string"])
    return [types] if isinstance(types, str) else types


def _escaped(name: str) -> str:
    """A name as a step of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
