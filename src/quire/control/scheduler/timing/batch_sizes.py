"""Counts how large messages were: how many rows each had, in buckets of powers of two.

Owns the counts of one engine. A row is one command's part of a message.
"""

from __future__ import annotations

BATCH_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""The most rows of each bucket; a last bucket has all above. A message with 0 rows only moved
blocks."""


class BatchSizes:
    """``counts[i]``: messages of at most ``BATCH_BOUNDS[i]`` rows and more than the bound before
    it; the last entry counts those above all bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BATCH_BOUNDS) + 1)

    def add(self, num_rows: int) -> None:
        bucket = (num_rows - 1).bit_length() + 1 if num_rows else 0
        self.counts[min(bucket, len(BATCH_BOUNDS))] += 1
