"""Finds the throughput at equal latency: the rate of arrivals at which a system reaches a given
latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from statistics import median
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of arrivals. ``bound``: ``>`` if the latency was not reached at any rate that was
    tried, of which this is the highest; ``<`` if it was exceeded at the lowest already."""

    value: float
    bound: Literal["", "<", ">"] = ""

    def __str__(self) -> str:
        return f"{self.bound}{self.value:.3g}"


def rate_at(points: Sequence[tuple[float, float]], latency_s: float) -> Rate:
    """Return where the curve through ``points`` (rate and latency, at rising rates) first exceeds
    ``latency_s``. Between two rates it is a straight line on logarithmic axes; one that
    goes to infinity (a program failed) leaves the lower rate."""
    assert points
    before = points[0]
    if before[1] > latency_s:
        return Rate(before[0], "<")
    for rate, found_s in points[1:]:
        if found_s > latency_s:
            share = log(latency_s / before[1]) / log(found_s / before[1])
            return Rate(exp(log(before[0]) + share * log(rate / before[0])))
        before = rate, found_s
    return Rate(before[0], ">")


def ratio_of(ours: Rate, other: Rate) -> Rate | None:
    """Return our rate over the other one; None where both are bounds of which nothing follows."""
    opposite: dict[str, Literal["", "<", ">"]] = {"": "", "<": ">", ">": "<"}
    bounds = {ours.bound, opposite[other.bound]} - {""}
    if len(bounds) > 1:
        return None
    value = ours.value / other.value
    return Rate(value, ours.bound or opposite[other.bound])


def median_of(rates: Sequence[Rate]) -> str:
    """Return the median as text for a table, preceded by ``>`` or ``<`` if it may be higher or
    lower, because some rates are bounds."""
    if not rates:
        return "-"
    value = median(one.value for one in rates)
    least = median(0.0 if one.bound == "<" else one.value for one in rates)
    most = median(inf if one.bound == ">" else one.value for one in rates)
    bounds = ["<"] * (least < value) + [">"] * (most > value)
    return f"{'/'.join(bounds)}{value:.3g}"


def over(ours: Mapping[int, Rate], other: Mapping[int, Rate]) -> str:
    """Return the median of the ratios of rates of the same seed, as text for a table."""
    ratios = [ratio_of(ours[seed], other[seed]) for seed in ours if seed in other]
    return median_of([one for one in ratios if one is not None])
