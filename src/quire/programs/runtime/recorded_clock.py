"""The clock of a restartable program: recorded readings are returned when the program is run again.

Must not know why a program is run again.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.core.interfaces import ProgramClock

MAX_READINGS = 100_000
"""Later readings are not recorded and differ when the program is run again."""


class RecordedClock:
    """``ProgramClock`` over ``clock`` for one incarnation. All incarnations share ``readings``."""

    def __init__(self, clock: ProgramClock, readings: list[float]) -> None:
        self._clock = clock
        self._readings = readings
        self._num_read = 0
        self._is_over = False

    def end(self) -> None:
        """End the incarnation because another one follows: its readings while it cleans up are not
        recorded."""
        self._is_over = True

    def now_s(self) -> float:
        return self._read(self._clock.now_s)

    def unix_s(self) -> float:
        return self._read(self._clock.unix_s)

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def _read(self, look: Callable[[], float]) -> float:
        """The next reading: recorded, or new."""
        if self._is_over:
            return look()
        place, self._num_read = self._num_read, self._num_read + 1
        if place < len(self._readings):
            return self._readings[place]
        reading = look()
        if place < MAX_READINGS:
            self._readings.append(reading)
        return reading
