"""Histograms with fixed buckets in Prometheus' form."""

from __future__ import annotations

from collections.abc import Sequence


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the cumulative counts by upper bound. ``counts`` has one entry more than ``bounds``,
    for values above all of them."""
    total = 0
    found = []
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return found
