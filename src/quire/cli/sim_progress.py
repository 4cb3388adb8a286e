"""What ``quire sim`` tells while it plays: a line on stderr now and then, on a terminal alone."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from quire.cli.console import messages

_SILENT_S = 5.0
"""Real seconds between two lines."""


class SimProgress:
    """From its making on. ``label``: the policy or strategy; ``num`` programs or requests
    (``kind``) are played."""

    def __init__(self, label: str, num: int, kind: str) -> None:
        self._label, self._num, self._kind = label, num, kind
        self._console = messages()
        self._began_s = self._told_s = monotonic()

    @property
    def callback(self) -> Callable[[int, float], None] | None:
        """For ``examine``: called with the number that is over and the virtual time."""
        return self._on_progress if self._console.is_terminal else None

    def end(self, num: str, rest: str = "") -> None:
        """A line that says what was played (``num``), and how long it took."""
        took_s = monotonic() - self._began_s
        self._console.print(f"{self._label}: {num} in {took_s:.1f} s{rest}")

    def _on_progress(self, num_over: int, now_s: float) -> None:
        if monotonic() - self._told_s >= _SILENT_S:
            self._told_s = monotonic()
            over = f"{num_over} of {self._num} {self._kind}"
            self._console.print(f"{self._label}: {over}, {now_s:.0f} s")
