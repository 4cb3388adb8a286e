"""What bounds one guest, besides the quotas that control enforces (pages, tokens, top K)."""

from __future__ import annotations

import msgspec


class GuestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Each ends the program with an error that names it, except ``memory_bytes``: what does not fit
    is a ``MemoryError`` in the program.

    ``turn_ms``: one turn may compute so long without awaiting. ``cpu_ms``: all turns together.
    ``calls_per_s``: commands, messages, requests and questions; one second's worth may come at
    once. ``outstanding_io``: HTTP requests at a time. ``turn_bytes``: what one turn may ask for.
    ``log_bytes``: what it may print, all in all; the rest is dropped with a note.
    """

    memory_bytes: int = 256 << 20
    turn_ms: int = 1000
    cpu_ms: int = 60_000
    calls_per_s: int = 20_000
    outstanding_io: int = 16
    turn_bytes: int = 8 << 20
    log_bytes: int = 1 << 20


class CallRate:
    """A bucket of calls that fills with time. The clock is the caller's."""

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
