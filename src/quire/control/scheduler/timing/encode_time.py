"""Estimates how long an encoder's batch takes: a line over its tokens, fitted to earlier batches.

Owns the moving sums of a least-squares fit, in which a batch counts less the older it is. While all
batches have about one size, the time of a batch beside its tokens stays as it was, at first 0.
"""

from __future__ import annotations

_KEEP = 0.9
"""The factor by which earlier measurements count less, at each new batch."""
_LEAST_SPREAD = 0.05
"""The least deviation of the sizes, as a share of their mean, from which a slope is computed."""


class EncodeTime:
    """The fit for all instances of one encoder, which take equally long. ``batch_s``: the time of a
    batch beside its tokens. ``token_s``: the time of each token; None until a batch was measured.
    ``knows_both``: whether batches of different sizes were measured."""

    def __init__(self) -> None:
        self.batch_s = 0.0
        self.token_s: float | None = None
        self.knows_both = False
        self._weight = 0.0
        self._tokens = self._seconds = 0.0
        self._squares = self._products = 0.0

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Note that a batch of ``num_tokens`` took ``elapsed_s``."""
        self._weight = self._weight * _KEEP + 1.0
        self._tokens = self._tokens * _KEEP + num_tokens
        self._seconds = self._seconds * _KEEP + elapsed_s
        self._squares = self._squares * _KEEP + num_tokens * num_tokens
        self._products = self._products * _KEEP + num_tokens * elapsed_s
        self._fit()

    def expected_s(self, num_tokens: int) -> float | None:
        """The expected time of a batch of ``num_tokens``; None until a batch was measured."""
        return None if self.token_s is None else self.batch_s + self.token_s * num_tokens

    def _fit(self) -> None:
        mean_tokens, mean_s = self._tokens / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - mean_tokens * mean_tokens
        if variance < (_LEAST_SPREAD * mean_tokens) ** 2:
            self.batch_s = min(self.batch_s, mean_s)
        else:
            covariance = self._products / self._weight - mean_tokens * mean_s
            slope_s = min(max(covariance / variance, 0.0), mean_s / mean_tokens)
            self.batch_s = mean_s - slope_s * mean_tokens
            self.knows_both = True
        self.token_s = (mean_s - self.batch_s) / mean_tokens
