"""Arithmetic on next-token distributions, for programs that choose for themselves.

A distribution is truncated to its top K. What is not listed is less likely than what is: where a
value for such a token is needed, the last listed one bounds it from above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from quire.core.decoding import Dist


def log_probs(dist: Dist) -> dict[int, float]:
    """Log probabilities of the listed tokens, best first."""
    return {
        token: math.log(prob)
        for token, prob in zip(dist.token_ids, dist.probs, strict=True)
        if prob > 0
    }


def bound(listed: Mapping[int, float]) -> float:
    """An upper bound of what is not listed."""
    return min(listed.values())


def softmax(scores: Mapping[int, float], temperature: float = 1.0) -> dict[int, float]:
    """Probabilities of ``scores``, which may be log probabilities that were changed."""
    highest = max(scores.values())
    weights = {token: math.exp((score - highest) / temperature) for token, score in scores.items()}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def best(scores: Mapping[int, float]) -> int:
    """The token of the highest score, ties to the lower id, as greedy decoding has it."""
    return min(scores, key=lambda token: (-scores[token], token))


def draw(probs: Mapping[int, float], uniform: float) -> int:
    """The token at ``uniform`` (0 up to 1) of the cumulated ``probs``, in their order."""
    token, left = -1, uniform * sum(probs.values())
    for token, prob in probs.items():  # noqa: B007 - the last one, should rounding leave some
        left -= prob
        if left < 0:
            break
    return token
