"""The arrival times of programs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import inf, isfinite
from random import Random

from quire.core.errors import ConfigError

ARRIVALS = ("poisson", "closed", "at-once")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How programs arrive. ``poisson``: on average ``rate`` programs a second, whether or not
    earlier ones have ended. ``closed``: ``width`` at once, then one whenever one ends. ``at-once``:
    all at time 0.

    Raises:
        ConfigError: an unknown kind, or a figure that makes no arrivals.
    """

    kind: str = "poisson"
    rate: float = 1.0
    width: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ARRIVALS:
            raise ConfigError(f"arrivals are {self.kind!r}: choose from {', '.join(ARRIVALS)}")
        if not (isfinite(self.rate) and self.rate > 0):
            raise ConfigError(f"the rate is {self.rate} programs/s: choose a number above 0")
        if self.width < 1:
            raise ConfigError(f"width is {self.width}: choose at least 1 program at a time")

    def times_s(self, num_programs: int, seed: int) -> list[float]:
        """The arrival time of each program; infinity: it arrives when an earlier one ends."""
        if self.kind == "closed":
            num_first = min(self.width, num_programs)
            return [0.0] * num_first + [inf] * (num_programs - num_first)
        if self.kind == "at-once":
            return [0.0] * num_programs
        random = Random(f"arrivals/{seed}")
        # drawn at rate 1 and stretched, so that rates are compared on the same pattern
        gaps = [random.expovariate(1.0) / self.rate for _ in range(num_programs)]
        return list(accumulate(gaps))
