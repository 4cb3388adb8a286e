"""The Gittins index: what a program's next service is worth, if lengths are known by their
distribution alone.

Over all amounts of service that a program could get next, the best ratio of the probability that it
then ends to the service that this takes. On one server, to serve the program with the highest index
gives the least mean response. Whatever ends after a time that is drawn from known ones can be
ranked so: programs by their tokens, waits by their seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from quire.control.policies.distribution import Distribution


def gittins_index(totals: Sequence[float], attained: float) -> float:
    """The best ratio of the probability to end to the service spent, for a program with a service
    of ``attained``; 0.0 if none of the sorted ``totals`` is larger."""
    return best_ratio(Distribution(totals, [1.0] * len(totals)), float(len(totals)), attained)


def best_ratio(lengths: Distribution, whole: float, attained: float) -> float:
    """As ``gittins_index``, but by worth, for a distribution whose masses, with that of programs
    longer than all of its totals, add up to ``whole``."""
    totals, masses, worths = lengths.totals, lengths.masses, lengths.worths
    first = bisect_right(totals, attained)
    left = whole - sum(masses[:first])
    best, spent, gained = 0.0, 0.0, 0.0
    before = attained
    for index in range(first, len(totals)):
        spent += (totals[index] - before) * left
        before = totals[index]
        left -= masses[index]
        gained += masses[index] * worths[index] if worths else masses[index]
        if spent > 0 and (index + 1 == len(totals) or totals[index + 1] != before):
            best = max(best, gained / spent)
    return best
