"""The choice of a token as ``docs/reference/sampling.md`` defines it, in plain NumPy, row by row.

Written from the definition alone, without the engine's code: every sampling implementation in
Quire, in Python or C++, must choose the same token as ``choose``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = np.float32
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15

LOG2_E = F32(1.4426950216293335)
POLYNOMIAL = [
    F32(0.0018793183844536543),
    F32(0.008990995585918427),
    F32(0.05581867694854736),
    F32(0.24015927314758300781),
    F32(0.6931517124176025),
    F32(1.0),
]


@dataclass(frozen=True)
class Parameters:
    """One row's sampler of the common subset; ``None``: without this processor."""

    greedy: bool = False
    top_k: int | None = None
    temperature: float | None = None
    min_p: float | None = None
    top_p: float | None = None
    seed: int = 0


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) for a seed and a position."""

    def mix(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        return word ^ (word >> 31)

    first = mix((seed + GOLDEN) & MASK)
    return (mix((first + (position + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53


def mass(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Integer masses relative to the best score."""
    y = np.maximum((scores - scores.max()) * LOG2_E, F32(-64))
    n = np.floor(y)
    f = y - n
    q = np.full_like(f, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        q = q * f
        q = q + coefficient
    assert q.dtype == np.float32
    return np.trunc(np.ldexp(q.astype(np.float64), (n + 32).astype(np.int32)))


def best_first(scores: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the candidates, best score first, ties by lower id."""
    return np.lexsort((ids, -scores.astype(np.float64)))


def choose(logits: NDArray[np.float32], parameters: Parameters, position: int) -> int | None:
    """The token chosen for ``position``; None where none can be."""
    scores, ids = logits.astype(np.float32), np.arange(len(logits))
    if np.isnan(scores).any() or not np.isfinite(scores.max()):
        return None
    if parameters.top_k is not None:
        kept = best_first(scores, ids)[: parameters.top_k]
        scores, ids = scores[kept], ids[kept]
    if parameters.temperature is not None:
        scores = scores / F32(max(parameters.temperature, 1e-20))
    if parameters.greedy:
        return int(ids[best_first(scores, ids)[0]])
    weights = mass(scores)
    if parameters.min_p is not None:
        kept = np.flatnonzero(weights >= parameters.min_p * 2.0**32)
        scores, ids, weights = scores[kept], ids[kept], weights[kept]
    if parameters.top_p is not None and parameters.top_p < 1:
        order = best_first(scores, ids)
        before = np.cumsum(weights[order]) - weights[order]
        inside = before < parameters.top_p * weights.sum()
        inside[0] = True
        scores, ids, weights = (a[order[inside]] for a in (scores, ids, weights))
    order = np.argsort(ids)
    ids, weights = ids[order], weights[order]
    target = np.floor(uniform(parameters.seed, position) * weights.sum())
    return int(ids[np.flatnonzero(np.cumsum(weights) > target)[0]])


def processors(parameters: Parameters) -> list[tuple[str, dict[str, Any]]]:
    """The same as an ordered list of named processors."""
    named = [
        ("top_k", "k", parameters.top_k),
        ("temperature", "temperature", parameters.temperature),
        ("min_p", "p", parameters.min_p),
        ("top_p", "p", parameters.top_p),
    ]
    return [(name, {key: value}) for name, key, value in named if value is not None]
