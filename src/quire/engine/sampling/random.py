"""Counter-based random numbers: one uniform per (seed, position), independent of the batch.

SplitMix64's finaliser (Steele, Lea and Flood, 2014) over the pair, in 64-bit words that wrap::

    mix(w):  w = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9
             w = (w ^ (w >> 27)) * 0x94D049BB133111EB
             w ^ (w >> 31)
    uniform = (mix(mix(seed + G) + (position + 1) * G) >> 11) * 2^-53,  G = 0x9E3779B97F4A7C15

Stateless, so a preempted or re-run sequence draws the same numbers again. Computed on the logits'
device, so that the host need not know the position.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.core.batch import U64

_MASK = (1 << 64) - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def seed_words(seeds: list[int]) -> U64:
    """Seeds of any size and sign as 64-bit words."""
    return np.array([seed & _MASK for seed in seeds], np.uint64)


def uniforms(seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """One number in [0, 1) for each (seed, position), float64 ``[S]``.

    Both int64; a seed's bits count, not its sign.
    """
    words_S = _mix(_mix(seeds_S + _GOLDEN) + (positions_S + 1) * _GOLDEN)
    return _shift(words_S, 11).to(torch.float64) * 2.0**-53


def _mix(words: Tensor) -> Tensor:
    words = (words ^ _shift(words, 30)) * _FIRST
    words = (words ^ _shift(words, 27)) * _SECOND
    return words ^ _shift(words, 31)


def _shift(words: Tensor, count: int) -> Tensor:
    """Logical right shift."""
    return (words >> count) & ((1 << (64 - count)) - 1)
