"""How long programs of one kind are: the probabilities of their total service.

Owns the form of a distribution and the product-limit estimate (Kaplan and Meier 1958). Programs
that ended would mislead alone: where engines are overloaded the short ones end first, so long ones
would seem not to exist. A living one with much service shows that programs are longer than that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of totals: ``masses[i]`` is the probability of ``totals[i]``, which rise. The
    rest to 1 belongs to programs that are longer than any that ended. ``worths[i]``: the mean worth
    of the end of a program of ``totals[i]``; if there are none, all are equal. ``cost_beyond``: the
    cost of the end of a longer program, as a share of its service (``tails``)."""

    totals: Sequence[float]
    masses: Sequence[float]
    worths: Sequence[float] = ()
    cost_beyond: float = 1.0


def product_limit(ended: Sequence[float], live: Sequence[float]) -> Distribution:
    """The probabilities of the totals ``ended``, when programs with the service ``live`` go on."""
    ends, lives = sorted(ended), sorted(live)
    totals: list[float] = []
    masses: list[float] = []
    survive, index, passed = 1.0, 0, 0
    while index < len(ends):
        total, behind = ends[index], bisect_right(ends, ends[index])
        while passed < len(lives) and lives[passed] < total:
            passed += 1
        at_risk = len(ends) - index + len(lives) - passed
        mass = survive * (behind - index) / at_risk
        totals.append(total)
        masses.append(mass)
        survive, index = survive - mass, behind
    return Distribution(totals, masses)
