"""Estimates how much is left of a program that is longer than all of its kind that ended.

Owns the estimate of a tail: by what factor longer programs exceed a long one (Hill 1975). Living
programs that are longer already count with what they have reached, a bound on their totals. Where
lengths are about equal, a program that has passed the largest is about to end; where a few are many
times longer than the rest, it has about as much left as it has had. Until programs show otherwise,
the second is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

TOP_SHARE = 4
"""The tail is estimated from the longest quarter of the programs: one of this number."""


def cost_beyond(totals: Sequence[float], live: Sequence[float]) -> float:
    """Return the cost of an end past the largest of the sorted ``totals``, as a share of the
    service until then, from above 0 to 1. For a tail of that form (Pareto's) it is the same at each
    length. ``live``: the service of the programs that live.

    The logarithms of the factors by which programs exceed a long one are distributed exponentially.
    Their mean is estimated with one assumed program before all others, which exceeds it by a factor
    of e: such a tail has as much left as it has had.
    """
    num_top = max(1, len(totals) // TOP_SHARE)
    if len(totals) <= num_top:
        return 1.0
    long = totals[-num_top - 1]
    if long <= 0:
        return 1.0
    past = 1.0
    for one in totals[-num_top:]:
        past += log(one / long)
    for one in live:
        if one > long:
            past += log(one / long)
    return min(1.0, past / (1 + num_top))
