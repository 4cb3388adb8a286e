"""Lines on stderr that say how far a long command is, in a terminal as in a pipe or a file.

Owns how often a line is due. A command that ends within ``INTERVAL_S`` prints none.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from quire.cli.console import messages

INTERVAL_S = 10.0
"""Real time between two lines."""


class ProgressLines:
    """The lines of one command, which begins when this is made. ``label`` stands before each one;
    ``clock``: real time in seconds."""

    def __init__(self, label: str = "", clock: Callable[[], float] = monotonic) -> None:
        self._label, self._clock = label, clock
        self._began_s = self._told_s = clock()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began_s

    def tell(self, words: Callable[[], str]) -> None:
        """Print a line if one is due; ``words`` is called only then."""
        now_s = self._clock()
        if now_s - self._told_s >= INTERVAL_S:
            self._told_s = now_s
            self.print(words())

    def print(self, words: str) -> None:
        """Print a line now."""
        messages().print(f"{self._label}: {words}" if self._label else words)
