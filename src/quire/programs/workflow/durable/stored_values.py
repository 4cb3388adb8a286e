"""The outputs of primitives as bytes.

Owns which values can be stored: JSON values and vectors. It refuses a value that would differ when
read back. ``state`` is not stored: the pages of a prompt are computed again.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.core.errors import InvalidArgument
from quire.programs.api.packed_vectors import PackedVectors
from quire.programs.workflow.graphs.values import ValueType

_MAX_DEPTH = 64
_PLAIN = (str, int, float, bool, type(None))


class _Vectors(msgspec.Struct, frozen=True):
    """Rows of ``dimensions`` numbers, as the array ``code`` packs them."""

    code: str
    dimensions: int
    numbers: bytes


class _Stored(msgspec.Struct, frozen=True):
    """The values by port: vectors, or JSON text."""

    ports: dict[str, _Vectors | str]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Stored)


def stored(where: str, kinds: Mapping[str, ValueType], values: Mapping[str, Any]) -> bytes:
    """Encode ``values``, by port, of these ``kinds``. ``where``: their component, for errors.

    Raises:
        InvalidArgument: JSON cannot represent a value; the error names the port and the type.
    """
    ports: dict[str, _Vectors | str] = {}
    for port, kind in kinds.items():
        if kind is ValueType.STATE:
            continue
        packed = _packed(values[port]) if kind is ValueType.VECTORS else None
        ports[port] = packed or _json(where, port, values[port])
    return _ENCODER.encode(_Stored(ports))


def restored(content: bytes) -> dict[str, Any]:
    """Return the values that ``stored`` received, without states."""
    ports = _DECODER.decode(content).ports
    return {
        port: json.loads(one) if isinstance(one, str) else _unpacked(one)
        for port, one in ports.items()
    }


def json_of(where: str, name: str, value: Any) -> str:
    """Encode ``value`` as JSON; raise as ``stored`` does."""
    return _json(where, name, value)


def _packed(rows: Any) -> _Vectors | None:
    """Pack ``rows``, or return None if they are not a list of equally long rows of floats."""
    if isinstance(rows, PackedVectors):
        return _Vectors("f", rows.dimensions, rows.values)
    if not rows or not all(isinstance(row, list) and row for row in rows):
        return None
    if len(set(map(len, rows))) > 1:
        return None
    numbers = [number for row in rows for number in row]
    if not all(type(number) is float for number in numbers):
        return None
    single, double = array("f", numbers), array("d", numbers)
    packed = single if array("d", single) == double else double
    return _Vectors(packed.typecode, len(rows[0]), packed.tobytes())


def _unpacked(vectors: _Vectors) -> Sequence[list[float]]:
    if vectors.code == "f":
        return PackedVectors(vectors.numbers, vectors.dimensions)
    numbers: array[float] = array("d")
    numbers.frombytes(vectors.numbers)
    each = vectors.dimensions
    return [numbers[start : start + each].tolist() for start in range(0, len(numbers), each)]


def _json(where: str, port: str, value: Any) -> str:
    odd = _odd(value, _MAX_DEPTH)
    if odd is not None:
        raise InvalidArgument(
            f"{where}: its {port!r} has {odd}, which cannot be kept: give what JSON has (texts, "
            "numbers, lists, objects), or ask without an id",
            param=where,
        )
    return json.dumps(value)


def _odd(value: Any, depth: int) -> str | None:
    """Describe the part of ``value`` that JSON cannot represent, or return None."""
    if type(value) in _PLAIN:
        return None
    if not depth:
        return f"more than {_MAX_DEPTH} levels"
    if type(value) is dict:
        for name, one in value.items():
            if type(name) is not str:
                return f"the key {name!r:.40}"
            if (odd := _odd(one, depth - 1)) is not None:
                return odd
        return None
    if type(value) is list:
        return next((odd for one in value if (odd := _odd(one, depth - 1)) is not None), None)
    return f"a {type(value).__name__}"
