"""``PackedVectors``: vectors as one block of bytes, for who passes them from encoders to stores.

As lists of Python's floats, the vectors of 40,000 texts take eight times the memory and a second of
the loop that all programs share.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import overload


class PackedVectors(Sequence[list[float]]):
    """``values``: little-endian float32, row by row, [vectors, dimensions]. An element is a list, a
    slice is packed again."""

    __slots__ = ("dimensions", "values")

    def __init__(self, values: bytes, dimensions: int) -> None:
        assert dimensions > 0, "a row has numbers"
        assert not len(values) % (4 * dimensions), "rows are whole"
        self.values, self.dimensions = values, dimensions

    def __len__(self) -> int:
        return len(self.values) // (4 * self.dimensions)

    @overload
    def __getitem__(self, place: int) -> list[float]: ...

    @overload
    def __getitem__(self, place: slice) -> PackedVectors: ...

    def __getitem__(self, place: int | slice) -> list[float] | PackedVectors:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            assert step == 1, "vectors are taken one after the other"
            size = 4 * self.dimensions
            return PackedVectors(self.values[start * size : stop * size], self.dimensions)
        place = range(len(self))[place]
        row = struct.Struct(f"<{self.dimensions}f")
        return list(row.unpack_from(self.values, place * row.size))

    def __iter__(self) -> Iterator[list[float]]:
        row = struct.Struct(f"<{self.dimensions}f")
        return map(list, row.iter_unpack(self.values))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return list(self) == other
        if not isinstance(other, PackedVectors):
            return NotImplemented
        return (self.dimensions, self.values) == (other.dimensions, other.values)

    __hash__ = None  # type: ignore[assignment]  # like a list
