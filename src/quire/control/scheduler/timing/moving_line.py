"""A line through the latest measurements of a time, by least squares.

Owns the moving sums, in which a measurement counts less the older it is. Must not know what is
measured.
"""

from __future__ import annotations

_LEAST_SPREAD = 0.05
"""The least deviation of the sizes, as a share of their mean, from which a slope is computed."""


class MovingLine:
    """``keep``: the factor by which earlier measurements count less, at each new one."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._weight = 0.0
        self._sizes = self._seconds = 0.0
        self._squares = self._products = 0.0

    def observe(self, size: float, seconds: float) -> None:
        """Note that something of ``size`` took ``seconds``."""
        keep = self._keep
        self._weight = self._weight * keep + 1.0
        self._sizes = self._sizes * keep + size
        self._seconds = self._seconds * keep + seconds
        self._squares = self._squares * keep + size * size
        self._products = self._products * keep + size * seconds

    @property
    def mean_size(self) -> float:
        """The mean size; asked for after a measurement."""
        return self._sizes / self._weight

    @property
    def mean_s(self) -> float:
        """The mean time; asked for after a measurement."""
        return self._seconds / self._weight

    @property
    def slope_s(self) -> float | None:
        """The time of one more in size; None while all sizes are about the same."""
        if not self._weight:
            return None
        mean_size = self.mean_size
        variance = self._squares / self._weight - mean_size * mean_size
        if variance < (_LEAST_SPREAD * mean_size) ** 2:
            return None
        return (self._products / self._weight - mean_size * self.mean_s) / variance
