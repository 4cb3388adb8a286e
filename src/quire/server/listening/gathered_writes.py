"""Gathers the writes of one pass of the edge's loop and sends them together at its end.

A step of the engine gives a token to every stream. Written one by one as they are made, each wakes
its reader, which on the same machine takes a core from the engine for some microseconds and sleeps
before the next one arrives. Written one after the other they wake a reader once. Also, all writes
of a response in one pass, such as its head and its first event, become one packet. Must not know
what the bytes mean.
"""

from __future__ import annotations

import asyncio
from typing import Any

_MAX_HELD_BYTES = 64 << 10
"""The most that is held back for one connection: beyond it the transport's own limits apply."""


class GatheredTransport(asyncio.Transport):
    """``transport`` with its writes gathered by ``writes``, which many connections share."""

    def __init__(self, transport: asyncio.Transport, writes: GatheredWrites) -> None:
        super().__init__()
        self._transport = transport
        self._writes = writes
        self._held: list[bytes | bytearray | memoryview] = []
        self._num_held = 0

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._held:
            self._writes.add(self)
        self._held.append(data)
        self._num_held += len(data)
        if self._num_held > _MAX_HELD_BYTES:
            self.send_held()

    def send_held(self) -> None:
        """Give held-back bytes to the transport, unless the connection is closed. Does nothing if
        there are none."""
        held, self._held, self._num_held = self._held, [], 0
        if held and not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.send_held()
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def close(self) -> None:
        self.send_held()
        self._transport.close()

    def abort(self) -> None:
        self._held, self._num_held = [], 0
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._num_held + self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


class GatheredWrites:
    """The connections of one loop with held-back bytes; all are flushed in the loop's next pass."""

    def __init__(self) -> None:
        self._holding: list[GatheredTransport] = []

    def add(self, transport: GatheredTransport) -> None:
        if not self._holding:
            asyncio.get_running_loop().call_soon(self._send)
        self._holding.append(transport)

    def _send(self) -> None:
        holding, self._holding = self._holding, []
        for transport in holding:
            transport.send_held()
