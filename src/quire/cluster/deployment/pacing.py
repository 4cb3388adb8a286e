"""How long to wait before a process that has ended is started again.

Pure: times are given with the events.
"""

from __future__ import annotations


class Pacing:
    """The pause doubles from ``first_pause_s`` to ``max_pause_s`` with each end in a row. A process
    that ran for ``settled_s`` or longer begins a new row."""

    def __init__(
        self, *, first_pause_s: float = 0.5, max_pause_s: float = 30.0, settled_s: float = 60.0
    ) -> None:
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self._settled_s = settled_s
        self._num_in_row = 0

    def pause_s(self, ran_s: float) -> float:
        """Return the pause before the next start, after a process that ran for ``ran_s`` has
        ended."""
        if ran_s >= self._settled_s:
            self._num_in_row = 0
        pause_s = min(self._first_pause_s * 2.0 ** min(self._num_in_row, 30), self._max_pause_s)
        self._num_in_row += 1
        return pause_s
