"""The clock of a running node."""

from __future__ import annotations

import time


class SystemClock:
    """Monotonic seconds of this machine; a loop's timers count in the same."""

    def now_s(self) -> float:
        return time.monotonic()
