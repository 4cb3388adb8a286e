"""Returns memory of ended guests from this process's allocator to the system.

An instance allocates some 0.4 MiB from the C library beside its own memory, and the library keeps
freed memory for later allocations: after a thousand guests that is more than the process itself
uses (docs/decisions/158-what-the-sandbox-saves.md). Belongs to one loop.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

WORTH_GUESTS = 64
"""Ended guests after which memory is returned: it takes about 25 us for each, in which no guest has
a turn."""
REST_S = 1.0
"""A wave of guests is over after this time without a start or an end."""
MOST_RESTS = 10
"""If guests come and go all the time, memory is returned after this many rests at the latest."""


class DelayedCalls(Protocol):
    """The part of an event loop that is used here."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any: ...


def find_trim() -> Callable[[], object] | None:
    """malloc_trim(3); ``None`` if the C library does not use glibc's allocator."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return lambda: trim(0)


class FreedMemory:
    """Calls ``trim``, which returns all free memory to the system, after a wave of guests; with
    ``None`` nothing happens."""

    def __init__(self, loop: DelayedCalls, trim: Callable[[], object] | None) -> None:
        self._loop = loop
        self._trim = trim
        self._num_ended = 0
        self._num_began = 0
        self._seen = (0, 0)
        self._num_rests = 0
        self._is_waiting = False

    def guest_began(self) -> None:
        self._num_began += 1

    def guest_ended(self) -> None:
        self._num_ended += 1
        if self._trim is not None and self._num_ended >= WORTH_GUESTS and not self._is_waiting:
            self._rest()

    def _rest(self) -> None:
        self._is_waiting = True
        self._seen = (self._num_began, self._num_ended)
        self._loop.call_later(REST_S, self._rested)

    def _rested(self) -> None:
        self._num_rests += 1
        is_wave = self._seen != (self._num_began, self._num_ended)
        if is_wave and self._num_rests < MOST_RESTS:
            self._rest()
            return
        self._is_waiting = False
        self._num_ended = self._num_rests = 0
        assert self._trim is not None
        self._trim()
