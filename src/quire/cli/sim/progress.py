"""Progress of ``quire sim``, and its word when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from quire.cli.progress_lines import ProgressLines
from quire.compilation import in_use
from quire.simulation.progress import RunProgress

_REMEDY = "; control runs as Python, with 'quire compile' it would take about a third of the time"


_LEAST_SHARE = 0.01
"""The share of the calls from which on the time left is estimated. The first calls of a trace end
late, so an estimate from fewer would be many times too long."""


class SimProgress:
    """The progress of one simulation, which begins when this is made. ``label``: the policy or
    strategy; ``kind``: what is played, "programs" or "requests", of one call each."""

    def __init__(self, label: str, kind: str, clock: Callable[[], float] = monotonic) -> None:
        self._lines = ProgressLines(label, clock)
        self._kind = kind
        self._hint = "" if in_use() else _REMEDY
        self._last: RunProgress | None = None

    def __call__(self, found: RunProgress) -> None:
        """Take the state of the simulation, and print a line if one is due."""
        self._last = found
        self._lines.tell(lambda: self._words(found))

    def end(self, num: str, rest: str = "") -> None:
        """Print a line that says what was played (``num``), and how long it took."""
        self._lines.print(f"{num} in {self._lines.elapsed_s:.1f} s{rest}")

    @contextmanager
    def interrupts_told(self) -> Iterator[None]:
        """Say how far the simulation was if Ctrl-C ends it; the interrupt goes on."""
        try:
            yield
        except KeyboardInterrupt:
            so_far = "before its first call had ended"
            if self._last is not None:
                so_far = f"at {_done(self._last, self._kind)}"
            self._lines.print(
                f"interrupted {so_far}; it has no figures, which would be those of short "
                f"{self._kind} alone"
            )
            raise

    def _words(self, found: RunProgress) -> str:
        elapsed_s = self._lines.elapsed_s
        words = _done(found, self._kind)
        rate = found.num_calls_over / elapsed_s
        words += f"; {rate:.1f} calls/s"
        if found.num_calls_over >= _LEAST_SHARE * found.num_calls:
            left_s = (found.num_calls - found.num_calls_over) / rate
            words += f", about {left_s:.0f} s left"
        hint, self._hint = self._hint, ""
        return words + hint


def _done(found: RunProgress, kind: str) -> str:
    share = 100 * found.num_calls_over / found.num_calls
    calls = f"{found.num_calls_over} of {found.num_calls} calls, " if kind == "programs" else ""
    return (
        f"{share:.0f} % ({calls}{found.num_programs_over} of {found.num_programs} {kind}), "
        f"{found.now_s:.0f} s of virtual time"
    )
