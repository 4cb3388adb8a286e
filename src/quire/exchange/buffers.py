"""Memory for pieces on their way, used again by later transfers: pages that the system must clear
first cost as much as copying them."""

from __future__ import annotations


class Buffer:
    """The pieces of one transfer, one after the other."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def room(self, num_bytes: int) -> memoryview:
        """Its first bytes, of which there are more where it was too small."""
        if len(self._memory) < num_bytes:
            self._memory = bytearray(num_bytes)
        return memoryview(self._memory)[:num_bytes]


class Buffers:
    """Belongs to one thread. Keeps at most ``num_kept`` that nobody uses."""

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept
        self._free: list[Buffer] = []

    def take(self) -> Buffer:
        return self._free.pop() if self._free else Buffer()

    def give(self, buffer: Buffer) -> None:
        if len(self._free) < self._num_kept:
            self._free.append(buffer)
