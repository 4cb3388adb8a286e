"""Estimates how long an encoder's batch takes: a line over its tokens, fitted to earlier batches.

Owns what follows from the line. While all batches have about one size, the time of a batch beside
its tokens stays as it was, at first 0.
"""

from __future__ import annotations

from quire.control.scheduler.timing.moving_line import MovingLine

_KEEP = 0.9
"""The factor by which earlier measurements count less, at each new batch."""


class EncodeTime:
    """The fit for all instances of one encoder, which take equally long. ``batch_s``: the time of a
    batch beside its tokens. ``token_s``: the time of each token; None until a batch was measured.
    ``knows_both``: whether batches of different sizes were measured."""

    def __init__(self) -> None:
        self.batch_s = 0.0
        self.token_s: float | None = None
        self.knows_both = False
        self._line = MovingLine(_KEEP)

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Note that a batch of ``num_tokens`` took ``elapsed_s``."""
        self._line.observe(num_tokens, elapsed_s)
        self._fit()

    def expected_s(self, num_tokens: int) -> float | None:
        """The expected time of a batch of ``num_tokens``; None until a batch was measured."""
        return None if self.token_s is None else self.batch_s + self.token_s * num_tokens

    def _fit(self) -> None:
        mean_tokens, mean_s = self._line.mean_size, self._line.mean_s
        slope_s = self._line.slope_s
        if slope_s is None:
            self.batch_s = min(self.batch_s, mean_s)
        else:
            self.batch_s = mean_s - min(max(slope_s, 0.0), mean_s / mean_tokens) * mean_tokens
            self.knows_both = True
        self.token_s = (mean_s - self.batch_s) / mean_tokens
