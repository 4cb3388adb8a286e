"""Explains why a JSON schema has no finite value: it refers to itself without end.

The compiler finds the error but only says that nothing can match. Must not compile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from quire.core.decoding import GrammarSpec

MAX_STEPS = 100_000
"""The most parts of a schema that are looked at: references to nested parts have them looked at
again and again."""

_EMBEDDED = "%json "
"""The mark before a schema in the Lark grammars of chat requests; the schema ends with the line."""


def endless_reference(grammar: GrammarSpec) -> str | None:
    """The first reference on a path from a schema to itself, such as ``#/$defs/node``, along parts
    that every value must have; ``None`` if no schema of ``grammar`` has such a path."""
    for schema in schemas_of(grammar):
        if (found := _endless(schema)) is not None:
            return found
    return None


def schemas_of(grammar: GrammarSpec) -> Iterator[Any]:
    """The readable schemas of a JSON schema or a Lark grammar."""
    if grammar.kind == "json_schema":
        texts = [grammar.source]
    else:
        parts = (line.partition(_EMBEDDED) for line in grammar.source.splitlines())
        texts = [source for _, found, source in parts if found]
    for text in texts:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):  # a client's own Lark grammar may be cut anywhere
            continue


def _endless(root: Any) -> str | None:
    """See ``endless_reference``. Walks depth first from the root along required parts, without
    recursion, because a client may chain thousands of references."""
    steps = _Steps()
    way = {"#": _needed(root, steps)}
    finite: set[str] = set()
    while way:
        last = next(reversed(way))
        reference = next(way[last], None)
        if reference is None:
            finite.add(last)
            del way[last]
        elif reference in way:
            return reference
        elif reference not in finite:
            way[reference] = _needed(_target(root, reference), steps)
    return None


def _target(root: Any, reference: str) -> Any:
    """The target of a local reference; ``None`` if there is no such schema."""
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


class _Steps:
    def __init__(self) -> None:
        self._num_left = MAX_STEPS

    def take(self, num: int) -> bool:
        """Take so many steps; return False if there are not so many left."""
        self._num_left -= num
        return self._num_left >= 0


def _needed(schema: Any, steps: _Steps) -> Iterator[str]:
    """The local references that every value of ``schema`` follows, as far as there are
    ``steps``."""
    waiting = [schema]
    while waiting and steps.take(1):
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        reference = part.get("$ref")
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            yield reference
        parts = _parts_of_every_value(part)
        if steps.take(len(parts)):
            waiting += parts


def _parts_of_every_value(schema: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    if isinstance(every := schema.get("allOf"), list):
        parts += every
    for choice in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(choice, list) and len(choice) == 1:
            parts += choice
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        names = (name for name in required if isinstance(name, str) and name in properties)
        parts += [properties[name] for name in names]
    num_items = schema.get("minItems")
    if isinstance(num_items, int) and num_items > 0:
        parts.append(schema.get("items"))
    return parts
