"""What a program has left that is longer than all of its kind that ended.

Owns the estimate of a tail: how much longer than a long program longer ones are (Hill 1975), with
those that live and are longer already (a bound on their totals). Where lengths are about equal, a
program that passed the largest is about to end; where a few are many times longer than the rest it
has about as much left as it was served. Until programs show otherwise, the second is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

TOP_SHARE = 4
"""The longest of so many programs tell what the tail is like."""


def cost_beyond(totals: Sequence[float], live: Sequence[float]) -> float:
    """What an end costs past the largest of the sorted ``totals``, as a share of what was served,
    from above 0 to 1. For a tail of that form (Pareto's) it is the same at each length.

    The logarithms of how far programs are past a long one are exponential; their mean is estimated
    with one program before all others that is longer by e, that is, has as much left as it had.
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
