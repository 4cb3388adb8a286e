"""A compiled guest's memory as its host reads it.

Never trusts it: every address and count is checked against the memory's present size before
anything is read. Must not know what a command asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from quire.core.errors import InvalidArgument
from quire.programs.sandbox.module.abi import RingCommand

Id = TypeVar("Id")


class Memory:
    """A guest's memory as it was after its last call: all of it is ``view``."""

    __slots__ = ("view",)

    def __init__(self, view: memoryview) -> None:
        self.view = view

    def check(self, address: int, length: int) -> None:
        """Raises ``InvalidArgument`` for what is not all inside."""
        if address + length > len(self.view):
            raise InvalidArgument(
                f"the program named {length} bytes at {address}, its memory has {len(self.view)}"
            )

    def take(self, address: int, length: int) -> memoryview:
        """Raises ``InvalidArgument`` for what is not all inside."""
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
    """A command's payload, read from front to back; all of it must be used."""

    def __init__(self, memory: Memory, entry: RingCommand) -> None:
        self._memory = memory
        self._address = entry.address
        self._end = entry.address + entry.length

    def read(self, layout: struct.Struct) -> tuple[float, ...]:
        return layout.unpack(self._next(layout.size))

    def ids(self, kind: Callable[[int], Id], count: int) -> list[Id]:
        return ids_of(kind, self._next(4 * count).cast("I")) if count else []

    def text(self, num_bytes: int) -> str:
        """UTF-8, followed by what is missing to whole words."""
        start = self._address
        self._next(-(-num_bytes // 4) * 4)
        return self._memory.text(start, num_bytes)

    def bits(self, num_rows: int, row_bits: int) -> list[list[bool]]:
        """Rows of bits, the lowest of a byte first, each row in bytes of its own."""
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
                f"the program's command has {self._end - self._address} bytes left, "
                f"{num_bytes} are asked for: its length is wrong"
            )
        taken = self._memory.take(self._address, num_bytes)
        self._address += num_bytes
        return taken


def ids_of(kind: Callable[[int], Id], numbers: Iterable[int]) -> list[Id]:
    """``kind`` is a new type of numbers, which at run time is a function that returns its argument:
    calling it costs more than the list."""
    return cast(list[Id], list(numbers))


def bits_of(packed: memoryview, count: int) -> list[bool]:
    """The first ``count`` bits, the lowest of a byte first."""
    return [bool(packed[index >> 3] >> (index & 7) & 1) for index in range(count)]
