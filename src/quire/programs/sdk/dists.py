"""Arithmetic on next-token distributions, for programs that choose tokens themselves.

A distribution is truncated to its top K tokens. All other tokens are less likely: where a value for
one of them is needed, the last listed probability is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from quire.core.decoding import Dist

__all__ = ["Dist", "best", "bound", "draw", "log_probs", "softmax"]


def log_probs(dist: Dist) -> dict[int, float]:
    """Log probabilities of the listed tokens, best first."""
    return {
        token: math.log(prob)
        for token, prob in zip(dist.token_ids, dist.probs, strict=True)
        if prob > 0
    }


def bound(listed: Mapping[int, float]) -> float:
    """An upper bound for tokens that are not listed."""
    return min(listed.values())


def softmax(scores: Mapping[int, float], temperature: float = 1.0) -> dict[int, float]:
    """Probabilities from ``scores``, such as modified log probabilities."""
    highest = max(scores.values())
    weights = {token: math.exp((score - highest) / temperature) for token, score in scores.items()}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def best(scores: Mapping[int, float]) -> int:
    """The token with the highest score; of equals the lowest id, as in greedy decoding."""
    return min(scores, key=lambda token: (-scores[token], token))


def draw(probs: Mapping[int, float], uniform: float) -> int:
    """The token at ``uniform`` (0 to 1) of the cumulative ``probs``, in their order."""
    token, left = -1, uniform * sum(probs.values())
    for token, prob in probs.items():  # noqa: B007 - rounding may leave the last token
        left -= prob
        if left < 0:
            break
    return token
