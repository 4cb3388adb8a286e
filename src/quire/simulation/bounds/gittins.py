"""``gittins``: the best order for a policy that knows the workload, but no program's future."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from quire.simulation.bounds.ranked import RankedByWork
from quire.simulation.work import Work, WorkTable

_RATIO = 1.15
"""The ratio of neighbouring points at which the index is computed. Between them a program keeps its
rank, as in a queue: otherwise programs of similar age would displace one another with every
message."""


class Gittins(RankedByWork):
    """Ranks a program by the Gittins index of the work it has had (Gittins 1979; Aalto, Ayesta and
    Righter 2009): of those in ``samples`` that have had as much, the largest share that would end
    within some further work, over the work that this takes on average. It is computed from the
    workload's samples, and blind to a program's kind."""

    def __init__(self, works: WorkTable, samples: Sequence[float]) -> None:
        super().__init__(works)
        self._points = _points(samples)
        ordered = np.sort(np.asarray(samples, np.float64))
        self._ranks_at = [_rank(ordered, point) for point in self._points]

    @property
    def name(self) -> str:
        return "gittins"

    def rank(self, work: Work) -> float:
        return self._ranks_at[bisect_right(self._points, work.done) - 1]


def _points(samples: Sequence[float]) -> list[float]:
    least, most = min(samples), max(samples)
    points, point = [0.0], max(1.0, least / 2)
    while point < most:
        points.append(point)
        point *= _RATIO
    return points


def _rank(ordered: np.ndarray, attained: float) -> float:
    """One over the index: the least average work for one program to end, over samples that are
    longer than ``attained``. A program that is longer than all samples comes last."""
    left = ordered[np.searchsorted(ordered, attained, side="right") :] - attained
    if not len(left):
        return float(ordered[-1])
    num_ended = np.arange(1, len(left) + 1)
    spent = np.cumsum(left) + left * (len(left) - num_ended)
    return float(np.min(spent / num_ended))
