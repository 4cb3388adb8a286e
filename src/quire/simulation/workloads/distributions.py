"""Lengths and times drawn at random, with the mean that a source gives."""

from __future__ import annotations

from functools import cached_property
from math import erfc, exp, log, sqrt
from random import Random

_BISECTIONS = 48


class LogNormal:
    """Whole numbers from ``least`` to ``most``, log-normal with spread ``sigma``, rounded, with
    values outside moved to the end; their mean is ``mean``.

    Sources give means and largest values. The log-normal form fits lengths of calls and texts well
    and has the long tail that scheduling is about; ``sigma`` is this simulator's choice, which each
    workload states.
    """

    def __init__(self, mean: float, sigma: float, *, least: int = 1, most: int) -> None:
        assert least < mean < most
        assert sigma > 0
        self._mean, self._sigma = mean, sigma
        self._least, self._most = least, most

    def draw(self, random: Random) -> int:
        return self._bounded(exp(random.gauss(self._mu, self._sigma)))

    def _bounded(self, value: float) -> int:
        return int(min(max(value + 0.5, self._least), self._most))

    @cached_property
    def _mu(self) -> float:
        """The logarithm's mean at which the bounded numbers have theirs."""
        low, high = log(self._least) - 4 * self._sigma, log(self._most) + 4 * self._sigma
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if self._mean_at(middle) < self._mean:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def _mean_at(self, mu: float) -> float:
        """The mean of the bounded variable before rounding, whose error is below a hundredth of a
        step except for the smallest means, where the sum over all numbers is exact and short."""
        if self._mean < 64:
            rest = range(self._least + 1, self._most + 1)
            return self._least + sum(_above(log(one - 0.5), mu, self._sigma) for one in rest)
        low, high, sigma = log(self._least), log(self._most), self._sigma
        inner = exp(mu + sigma**2 / 2) * (
            _above(low, mu + sigma**2, sigma) - _above(high, mu + sigma**2, sigma)
        )
        below = 1 - _above(low, mu, sigma)
        return self._least * below + inner + self._most * _above(high, mu, sigma)


def _above(logarithm: float, mu: float, sigma: float) -> float:
    """The share of a log-normal variable above ``exp(logarithm)``."""
    return 0.5 * erfc((logarithm - mu) / (sigma * sqrt(2)))


def seconds(random: Random, median_s: float, sigma: float, most_s: float) -> float:
    """A log-normal time, at most ``most_s``; to the microsecond, so that plans read well."""
    return round(min(most_s, median_s * exp(random.gauss(0.0, sigma))), 6)
