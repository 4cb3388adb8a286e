"""Reference sampling for one token: processors in order, then the draw. Plain numpy, no batching.

``seen`` is the whole history of a row, ``generated`` the part that was sampled: the repetition
penalty uses the former, presence and frequency penalties the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.decoding import Params, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.testing.fake_engine.hashing import draw_uniform

Logits = NDArray[np.float64]


def log_softmax(logits: NDArray[Any]) -> Logits:
    """Log probabilities over the last axis, in double precision."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def best_first(values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Indices of the ``count`` largest, best first, ties by lower index."""
    return np.argsort(-values, kind="stable")[:count]


def sample_token(
    logits: NDArray[Any],
    sampler: SamplerSpec,
    position: int,
    seen: Sequence[int] = (),
    generated: Sequence[int] = (),
) -> int:
    """The token that ``sampler`` chooses for ``position``.

    Raises:
        InvalidArgument: an unknown processor, a bad parameter, no seed for a random draw, or no
            token left to choose.
    """
    scores = logits.astype(np.float64)
    for processor in sampler.processors:
        scores = _apply(processor.name, processor.params, scores, seen, generated)
    if not np.isfinite(scores.max()):
        raise InvalidArgument("every token is excluded: loosen the sampler or the constraint")
    if sampler.greedy:
        return int(np.argmax(scores))
    if sampler.seed is None:
        raise InvalidArgument("a random draw without a seed: control picks missing seeds")
    cumulative = np.cumsum(np.exp(log_softmax(scores)))
    drawn = draw_uniform(sampler.seed, position) * cumulative[-1]
    return int(np.searchsorted(cumulative, drawn, side="right"))


def _apply(
    name: str, params: Params, scores: Logits, seen: Sequence[int], generated: Sequence[int]
) -> Logits:
    match name:
        case "logit_bias":
            scores = scores.copy()
            np.add.at(scores, _tokens(params, scores), np.array(_numbers(params, "biases")))
            return scores
        case "allowed_tokens":
            kept = np.full_like(scores, -np.inf)
            allowed = _tokens(params, scores)
            kept[allowed] = scores[allowed]
            return kept
        case "bad_words":
            return _exclude_words(scores, _entries(params, "tokens"), seen)
        case "dry":
            return _penalise_repeats(scores, params, seen)
        case "repetition_penalty":
            return _penalise_repetition(scores, _number(params, "penalty"), seen)
        case "presence_penalty":
            return scores - _number(params, "penalty") * (_counts(scores, generated) > 0)
        case "frequency_penalty":
            return scores - _number(params, "penalty") * _counts(scores, generated)
        case "temperature":
            return _scale(scores, _number(params, "temperature"))
        case "top_k":
            return _keep_top_k(scores, int(_number(params, "k")))
        case "top_p":
            return _keep_top_p(scores, _number(params, "p"))
        case "min_p":
            floor = scores.max() + np.log(max(_number(params, "p"), 1e-300))
            return np.where(scores >= floor, scores, -np.inf)
        case "typical":
            return _keep_typical(scores, _number(params, "p"))
    raise InvalidArgument(f"no processor is named {name!r}: see Processor for the standard names")


def _scale(scores: Logits, temperature: float) -> Logits:
    if temperature <= 0:
        raise InvalidArgument(f"temperature is {temperature}; ask for greedy instead of 0")
    return scores / temperature


def _keep_top_k(scores: Logits, k: int) -> Logits:
    if k < 1:
        raise InvalidArgument(f"top_k is {k}; keep at least 1")
    kept = np.full_like(scores, -np.inf)
    best = best_first(scores, k)
    kept[best] = scores[best]
    return kept


def _keep_top_p(scores: Logits, p: float) -> Logits:
    """The smallest set of best tokens whose probabilities reach ``p``; always at least one."""
    order = best_first(scores, len(scores))
    probs = np.exp(log_softmax(scores[order]))
    before = np.cumsum(probs) - probs
    kept = np.full_like(scores, -np.inf)
    chosen = order[(before < p) | (np.arange(len(order)) == 0)]
    kept[chosen] = scores[chosen]
    return kept


def _penalise_repetition(scores: Logits, penalty: float, seen: Sequence[int]) -> Logits:
    if penalty <= 0:
        raise InvalidArgument(f"repetition_penalty is {penalty}; it must be positive")
    penalised = np.where(scores > 0, scores / penalty, scores * penalty)
    return np.where(_counts(scores, seen) > 0, penalised, scores)


def _exclude_words(
    scores: Logits, words: Sequence[int | float | list[int]], seen: Sequence[int]
) -> Logits:
    scores = scores.copy()
    for word in words:
        tokens = word if isinstance(word, list) else [int(word)]
        _check_tokens(np.array(tokens), scores)
        before = len(tokens) - 1
        if before == 0 or list(seen[-before:]) == tokens[:-1]:
            scores[tokens[-1]] = -np.inf
    return scores


def _penalise_repeats(scores: Logits, params: Params, seen: Sequence[int]) -> Logits:
    """DRY, by comparing the end of the history with every earlier place, token by token."""
    scores, tokens = scores.copy(), list(seen)
    span = int(_number({"range": 0, **params}, "range"))
    tokens = tokens[-span:] if span else tokens
    breakers = {int(one) for one in _numbers({"breakers": [], **params}, "breakers")}
    allowed = int(_number({"allowed_length": 2, **params}, "allowed_length"))
    longest: dict[int, int] = {}
    for place in range(len(tokens) - 1):
        length = 0
        while (
            length <= place
            and tokens[place - length] == tokens[-1 - length]
            and tokens[place - length] not in breakers
        ):
            length += 1
        following = tokens[place + 1]
        if following not in breakers:
            longest[following] = max(length, longest.get(following, 0))
    base = _number({"base": 1.75, **params}, "base")
    for token, length in longest.items():
        if length >= allowed:
            scores[token] -= _number(params, "multiplier") * base ** min(length - allowed, 50)
    return scores


def _keep_typical(scores: Logits, p: float) -> Logits:
    """The smallest set of tokens of total probability ``p`` whose surprise is closest to the
    entropy."""
    surprise = -log_softmax(scores)
    probs = np.exp(-surprise)
    distance = np.abs(surprise - np.sum(np.where(probs > 0, probs * surprise, 0.0)))
    order = np.argsort(distance, kind="stable")
    mass = np.cumsum(probs[order])
    last = order[min(int(np.sum(mass < p)), len(order) - 1)]
    return np.where(distance <= distance[last], scores, -np.inf)


def _counts(scores: Logits, tokens: Sequence[int]) -> Logits:
    return np.bincount(np.array(tokens, np.int64), minlength=len(scores)).astype(np.float64)


def _number(params: Params, key: str) -> float:
    value = params.get(key)
    if not isinstance(value, int | float):
        raise InvalidArgument(f"parameter {key!r} is {value!r}; it must be a number")
    return float(value)


def _numbers(params: Params, key: str) -> list[float]:
    values = _entries(params, key)
    if any(isinstance(item, list) for item in values):
        raise InvalidArgument(f"parameter {key!r} is {values!r}; it must be a list of numbers")
    return [float(item) for item in values if not isinstance(item, list)]


def _entries(params: Params, key: str) -> list[int | float | list[int]]:
    value = params.get(key)
    if not isinstance(value, list):
        raise InvalidArgument(f"parameter {key!r} is {value!r}; it must be a list")
    return value


def _tokens(params: Params, scores: Logits) -> NDArray[np.int64]:
    tokens = np.array(_numbers(params, "tokens"), np.int64)
    _check_tokens(tokens, scores)
    return tokens


def _check_tokens(tokens: NDArray[np.int64], scores: Logits) -> None:
    if np.any((tokens < 0) | (tokens >= len(scores))):
        raise InvalidArgument(f"token ids {tokens.tolist()} exceed the vocabulary {len(scores)}")
