"""``srpt``: the program with the least work left runs first. Knows the future."""

from __future__ import annotations

from quire.simulation.bounds.ranked import RankedByWork
from quire.simulation.work import Work


class ShortestRemaining(RankedByWork):
    """Shortest remaining processing time over programs, the best for mean response on one server
    with preemption (Schrage 1968). On several sequences with batches it is a bound by experience
    only."""

    @property
    def name(self) -> str:
        return "srpt"

    def rank(self, work: Work) -> float:
        return work.left
