"""The types of the values that flow between primitives, and references to such values.

Must not know what a primitive does with a value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api.packed_vectors import PackedVectors


class ValueType(StrEnum):
    """``state`` is the held pages of a model call, ``done`` the end of an effect, ``object`` a
    value that tools pass to each other: in a query or a result it is a JSON object. ``scores`` flow
    between two primitives of a ranking. The others are plain values. Those in ``LISTS`` have
    elements. ``vectors`` are lists of lists, or between an encoder and a store packed."""

    TEXT = "text"
    TEXTS = "texts"
    DOCUMENTS = "documents"
    VECTORS = "vectors"
    SCORES = "scores"
    BOOLEAN = "boolean"
    OBJECT = "object"
    STATE = "state"
    DONE = "done"


LISTS = frozenset({ValueType.TEXTS, ValueType.DOCUMENTS, ValueType.VECTORS, ValueType.SCORES})
"""Types whose values are lists."""
WRITTEN = frozenset(ValueType) - {ValueType.STATE, ValueType.SCORES}
"""Types that a template may name."""


def empty(kind: ValueType) -> Any:
    """Return the output of a primitive on a branch that is not taken."""
    if kind in LISTS:
        return []
    return {ValueType.TEXT: "", ValueType.BOOLEAN: False}.get(kind)


def fits(kind: ValueType, value: Any) -> bool:
    """Whether a component may give ``value`` as an output of type ``kind``."""
    match kind:
        case ValueType.TEXT:
            return isinstance(value, str)
        case ValueType.BOOLEAN:
            return isinstance(value, bool)
        case ValueType.TEXTS:
            return isinstance(value, list) and all(isinstance(one, str) for one in value)
        case ValueType.DOCUMENTS | ValueType.VECTORS:
            return isinstance(value, list | PackedVectors)
    return kind in (ValueType.DONE, ValueType.OBJECT)


def odd_vector(rows: Sequence[Any]) -> int | None:
    """Return the place of the first of ``rows`` that is no list of finite numbers, or is of another
    length than the first; None if there is none."""
    for place, row in enumerate(rows):
        if not (isinstance(row, list) and row and len(row) == len(rows[0])):
            return place
        if not all(type(one) in (int, float) and _is_finite(one) for one in row):
            return place
    return None


def _is_finite(number: float) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # an integer may have any number of digits
        return False


def joined(values: Sequence[Any]) -> Any:
    """Return the elements of several lists as one; packed vectors of one encoder stay packed."""
    packed = [one for one in values if isinstance(one, PackedVectors)]
    if packed and len(packed) == len(values) and len({one.dimensions for one in packed}) == 1:
        return PackedVectors(b"".join(one.values for one in packed), packed[0].dimensions)
    return [element for one in values for element in one]


async def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with packed vectors as lists of lists, for whom only such may reach: the
    developer's functions, and clients."""
    found = dict(values)
    for name, one in values.items():
        if isinstance(one, PackedVectors):
            found[name] = await asyncio.to_thread(list, one)
    return found


def value_type(written: str, where: str) -> ValueType:
    """Return the type that a template names.

    Raises:
        InvalidArgument: there is no such type.
    """
    known = {str(kind): kind for kind in ValueType if kind in WRITTEN}
    if written not in known:
        raise InvalidArgument(
            f"{where}: no type {written!r}; use one of {', '.join(sorted(known))}", param=where
        )
    return known[written]


QUERY = ""
"""The ``primitive`` of a reference to an input of the query."""


@dataclass(frozen=True, slots=True)
class Ref:
    """One output (``port``) of a primitive, or an input of the query: the whole value, the elements
    ``start`` to ``stop`` of a list, or its element ``index``."""

    primitive: str
    port: str = "out"
    start: int | None = None
    stop: int | None = None
    index: int | None = None

    @property
    def from_query(self) -> bool:
        return self.primitive == QUERY

    @property
    def whole(self) -> bool:
        """Whether it refers to the whole value."""
        return self.start is None and self.index is None

    def element(self, index: int) -> Ref:
        """Return a reference to element ``index`` of the list that this refers to."""
        assert self.index is None, "an element has no elements"
        return Ref(self.primitive, self.port, index=(self.start or 0) + index)

    def part(self, start: int, stop: int) -> Ref:
        """Return a reference to elements ``start`` to ``stop`` of the list that this refers to."""
        assert self.index is None, "an element has no elements"
        base = self.start or 0
        return replace(self, start=base + start, stop=base + stop)

    def take(self, value: Any) -> Any:
        """Take the part that this refers to from the whole value of its output."""
        if self.index is not None:
            return value[self.index]
        return value if self.start is None else value[self.start : self.stop]

    def __str__(self) -> str:
        place = "" if self.whole else f"[{self.index}]"
        if self.start is not None:
            place = f"[{self.start}:{self.stop}]"
        return f"{self.primitive or 'query'}.{self.port}{place}"
