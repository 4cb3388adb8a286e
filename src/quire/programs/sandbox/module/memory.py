"""A compiled guest's memory as its host reads it.

Every address and count is checked against the memory's current size before it is read. Must not
know what a command means.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from quire.core.errors import InvalidArgument
from quire.programs.sandbox.module.abi import RingCommand

Id = TypeVar("Id")


class GuestMemory:
    """A guest's memory after its last call; ``view`` is all of it."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def check(self, address: int, length: int) -> None:
        """Raise ``InvalidArgument`` unless the range is within the memory."""
        if address + length > len(self.view):
            raise InvalidArgument(
                f"the program named {length} bytes at {address}; its memory has {len(self.view)}"
            )

    def take(self, address: int, length: int) -> memoryview:
        """The bytes of a range. Raises ``InvalidArgument`` unless it is within the memory."""
        self.check(address, length)
        return self.view[address : address + length]

    def text(self, address: int, length: int) -> str:
        try:
            return str(self.take(address, length), "utf-8")
        except UnicodeDecodeError as exc:
            raise InvalidArgument(f"the program named text that is not UTF-8: {exc}") from exc

    def u32s(self, address: int, count: int) -> list[int]:
        return self.take(address, 4 * count).cast("I").tolist() if count else []


class Words:
    """A command's payload, read from start to end; all of it must be used."""

    def __init__(self, memory: GuestMemory, entry: RingCommand) -> None:
        self._memory = memory
        self._address = entry.address
        self._end = entry.address + entry.length

    def read(self, layout: struct.Struct) -> tuple[float, ...]:
        return layout.unpack(self._next(layout.size))

    def ids(self, kind: Callable[[int], Id], count: int) -> list[Id]:
        return ids_of(kind, self._next(4 * count).cast("I")) if count else []

    def text(self, num_bytes: int) -> str:
        """UTF-8, padded to whole words."""
        start = self._address
        self._next(-(-num_bytes // 4) * 4)
        return self._memory.text(start, num_bytes)

    def bits(self, num_rows: int, row_bits: int) -> list[list[bool]]:
        """Rows of bits, lowest bit of a byte first; each row starts at a new byte."""
        row_bytes = -(-row_bits // 8)
        taken = self._next(num_rows * row_bytes)
        return [
            bits_of(taken[row * row_bytes : (row + 1) * row_bytes], row_bits)
            for row in range(num_rows)
        ]

    def end(self) -> None:
        if self._address != self._end:
            raise InvalidArgument(
                f"the program's command has {self._end - self._address} bytes too many"
            )

    def _next(self, num_bytes: int) -> memoryview:
        if self._address + num_bytes > self._end:
            raise InvalidArgument(
                f"the program's command has {self._end - self._address} bytes left and needs "
                f"{num_bytes}: its length is wrong"
            )
        taken = self._memory.take(self._address, num_bytes)
        self._address += num_bytes
        return taken


def ids_of(kind: Callable[[int], Id], numbers: Iterable[int]) -> list[Id]:
    """``numbers`` as a list. ``kind`` is a NewType, which returns its argument at run time; calling
    it for each number would take longer than creating the list."""
    return cast(list[Id], list(numbers))


def bits_of(packed: memoryview, count: int) -> list[bool]:
    """The first ``count`` bits, lowest bit of a byte first."""
    return [bool(packed[index >> 3] >> (index & 7) & 1) for index in range(count)]
