"""The limits of one guest, besides the quotas that control enforces (pages, tokens, top K)."""

from __future__ import annotations

import msgspec


class GuestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Exceeding a limit ends the program with an error that names the limit. Exceptions: memory
    beyond ``memory_bytes`` raises ``MemoryError`` in the program, and output beyond ``log_bytes``
    is dropped with a note.

    ``turn_ms``: how long one turn may compute without awaiting. ``cpu_ms``: all turns together.
    ``calls_per_s``: commands, messages, requests and questions; the calls of one second may come at
    once. ``outstanding_io``: concurrent HTTP requests. ``turn_bytes``: size of the calls of one
    turn.
    """

    memory_bytes: int = 256 << 20
    turn_ms: int = 1000
    cpu_ms: int = 60_000
    calls_per_s: int = 20_000
    outstanding_io: int = 16
    turn_bytes: int = 8 << 20
    log_bytes: int = 1 << 20


class CallRate:
    """A token bucket of calls. The caller passes the time."""

    __slots__ = ("_left", "_rate", "_then_s")

    def __init__(self, calls_per_s: int, now_s: float) -> None:
        self._rate = calls_per_s
        self._left = float(calls_per_s)
        self._then_s = now_s

    def take(self, count: int, now_s: float) -> bool:
        """Whether ``count`` more calls are allowed now."""
        self._left = min(self._rate, self._left + (now_s - self._then_s) * self._rate)
        self._then_s = now_s
        self._left -= count
        return self._left >= 0
