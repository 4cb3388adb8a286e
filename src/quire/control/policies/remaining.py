"""How much work is left: learned from what programs of the same kind were served in all.

Owns the samples of each kind and the rank that follows from them. The rank is that of the Gittins
index, which is optimal for one server when lengths are known by their distribution alone: of all
amounts that a program could be given next, the best ratio of the chance that it then ends to the
service that it takes. For long-tailed kinds the rank gets worse with what a program was served, as
under least attained service; for kinds of about equal length it gets better towards the end, as
under first come, first served.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import inf, log2

MAX_SAMPLES = 256
MIN_SAMPLES = 16
"""Below so many nothing is known of a kind: then what is left is about what it was served."""
MAX_KINDS = 512
SHORTEST = 64.0
"""Differences below so many tokens are no reason to displace anybody."""

Kind = tuple[str, str]


def gittins_index(totals: Sequence[float], attained: float) -> float:
    """The best ratio of the chance to end to the service spent, for a program that was served
    ``attained``; 0.0 if none of the sorted ``totals`` is larger."""
    first = bisect_right(totals, attained)
    num_left = len(totals) - first
    best, spent = 0.0, 0.0
    before = attained
    for index in range(first, len(totals)):
        spent += (totals[index] - before) * (len(totals) - index)
        before = totals[index]
        if index + 1 == len(totals) or totals[index + 1] != before:
            best = max(best, (index + 1 - first) / spent)
    return best if num_left else 0.0


class KindOfProgram:
    """Totals of the programs that ended last, and the ranks that follow from them."""

    __slots__ = ("_bounds", "_num_new", "_ranks", "_totals")

    def __init__(self) -> None:
        self._totals: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._num_new = 0
        self._bounds: list[float] = []
        self._ranks: list[float] = []

    def add(self, total: float) -> None:
        self._totals.append(total)
        self._num_new += 1
        if len(self._totals) >= MIN_SAMPLES and self._num_new * 8 >= len(self._totals):
            self._learn()

    def rank(self, attained: float) -> float:
        """The logarithm (base 2) of the service that an end costs now; the smaller goes first."""
        index = bisect_right(self._bounds, attained) - 1
        if index < 0 or index >= len(self._ranks) or self._ranks[index] == inf:
            return log2(max(attained, SHORTEST))
        return self._ranks[index]

    def _learn(self) -> None:
        """Ranks at half octaves of attained service: so many steps, and not one a sample."""
        self._num_new = 0
        totals = sorted(self._totals)
        self._bounds, self._ranks = [0.0], []
        while self._bounds[-1] < totals[-1]:
            self._bounds.append(max(SHORTEST, self._bounds[-1] * 2**0.5))
        for attained in self._bounds:
            index = gittins_index(totals, attained)
            self._ranks.append(max(log2(1 / index), log2(SHORTEST)) if index else inf)


class Kinds:
    """Of all tenants; the ones not used for longest are forgotten."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, KindOfProgram] = OrderedDict()

    def get(self, kind: Kind) -> KindOfProgram:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = KindOfProgram()
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(kind)
        return found
