"""Runs contenders in interleaved rounds, and computes their statistics: medians with an interval,
ratios within rounds.

Machines drift, and share their processors with others. So the contenders of a comparison take
turns, ratios are computed within a round, and a figure includes the interval of its median. Does
not know what is measured.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")

CONFIDENCE = 0.95
_SETTLE_S = 0.3
"""Pause between two turns: thread pools spin for a while after their last work."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A median, and its interval at a confidence of at least 95 % (order statistics)."""

    median: float
    low: float
    high: float
    num_rounds: int

    def scaled(self, factor: float) -> Figure:
        low, high = sorted((self.low * factor, self.high * factor))
        return Figure(self.median * factor, low, high, self.num_rounds)

    def rounded(self, digits: int = 4) -> dict[str, float]:
        return {
            name: value if isinstance(value, int) else float(f"{value:.{digits}g}")
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


def figure(values: Sequence[float]) -> Figure:
    """Return the median of ``values``. With fewer than 6 the interval is their whole range."""
    ordered = sorted(values)
    skip = _num_outside(len(ordered))
    return Figure(
        statistics.median(ordered), ordered[skip], ordered[len(ordered) - 1 - skip], len(ordered)
    )


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Figure:
    """Return the figure of the ratios of values of the same round."""
    return figure([a / b for a, b in zip(numerators, denominators, strict=True)])


def _num_outside(count: int) -> int:
    """How many of the smallest (and largest) values lie outside of the median's interval."""
    tail, outside = 0.0, 0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if 2 * tail > 1 - CONFIDENCE:
            break
        outside = below + 1
    return max(0, outside - 1) if outside else 0


def take_turns(
    title: str, contenders: Mapping[str, Callable[[], T]], num_rounds: int
) -> dict[str, list[T]]:
    """Run each contender once per round, in turn; the first round is a warm-up and is dropped.

    Shows a progress bar on stderr. The order changes from round to round, so that no contender
    always runs after the same one.
    """
    results: dict[str, list[T]] = {name: [] for name in contenders}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=(num_rounds + 1) * len(contenders))
        for number in range(num_rounds + 1):
            names = list(contenders)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                progress.update(task, description=f"{title}: {name}")
                time.sleep(_SETTLE_S)
                result = contenders[name]()
                if number:
                    results[name].append(result)
                progress.advance(task)
    return results
