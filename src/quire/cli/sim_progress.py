"""Progress of ``quire sim``: a line on stderr now and then, if it is a terminal."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from quire.cli.console import messages

_SILENT_S = 5.0
"""Real time between two lines."""


class SimProgress:
    """The progress of one simulation, which begins when this is made. ``label``: the policy or
    strategy; ``num`` programs or requests (``kind``) are played."""

    def __init__(self, label: str, num: int, kind: str) -> None:
        self._label, self._num, self._kind = label, num, kind
        self._console = messages()
        self._began_s = self._told_s = monotonic()

    @property
    def callback(self) -> Callable[[int, float], None] | None:
        """The callback of ``examine``: it takes the number that has ended, and the virtual time."""
        return self._on_progress if self._console.is_terminal else None

    def end(self, num: str, rest: str = "") -> None:
        """Print a line that says what was played (``num``), and how long it took."""
        took_s = monotonic() - self._began_s
        self._console.print(f"{self._label}: {num} in {took_s:.1f} s{rest}")

    def _on_progress(self, num_over: int, now_s: float) -> None:
        if monotonic() - self._told_s >= _SILENT_S:
            self._told_s = monotonic()
            over = f"{num_over} of {self._num} {self._kind}"
            self._console.print(f"{self._label}: {over}, {now_s:.0f} s")
