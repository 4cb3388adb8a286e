"""Counter-based random numbers: one uniform per (seed, position), whatever the batch looks like.

SplitMix64's finaliser (Steele, Lea and Flood, 2014) over the pair; no state, so a preempted or
re-run sequence draws the same numbers again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import U64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 0xFFFFFFFFFFFFFFFF


def seed_words(seeds: list[int]) -> U64:
    """Seeds of any size and sign as 64-bit words."""
    return np.array([seed & _MASK for seed in seeds], np.uint64)


def uniforms(seeds: U64, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position)."""
    counter = positions.astype(np.uint64) + np.uint64(1)
    words = _mix(_mix(seeds + _GOLDEN) + counter * _GOLDEN)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(words: U64) -> U64:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = words ^ (words >> np.uint64(31))
    return mixed
