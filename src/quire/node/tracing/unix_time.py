"""Converts event time to Unix time, with the same result each time.

The offset between two clocks differs by microseconds at each reading, so a time that is shown twice
would move. A system clock that is set anew must be followed all the same. Owns the offset.
"""

from __future__ import annotations

from quire.core.interfaces import ProgramClock

_TOLERATED_S = 0.01


class UnixTime:
    """``offset_s()`` is added to an event time to give Unix time. For any thread."""

    def __init__(self, clock: ProgramClock) -> None:
        self._clock = clock
        self._offset_s = clock.unix_s() - clock.now_s()

    def offset_s(self) -> float:
        now_s = self._clock.unix_s() - self._clock.now_s()
        if abs(now_s - self._offset_s) > _TOLERATED_S:
            self._offset_s = now_s
        return self._offset_s

    def now_s(self) -> float:
        """Unix time."""
        return self._clock.now_s() + self.offset_s()
