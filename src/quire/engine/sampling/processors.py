"""The standard processors, each vectorised over the rows that share a processor list.

A processor is built once for its rows and applied in every step. Parameters are checked when a
sampler arrives (``checked_parameters``), so that building cannot fail.

Shapes: S rows, V vocabulary, C candidates per row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.candidates import Candidates

_NUCLEUS_GUESS = 256
"""Best tokens looked at before the whole vocabulary is sorted for a top-p."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """How often each token occurred ``[S, V]``: ``seen`` in the whole history, ``generated`` in
    what was sampled. Kept up to date by the plan."""

    seen_SV: Tensor
    generated_SV: Tensor


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What a processor may know of its rows. ``counts`` is None unless some processor asks."""

    num_rows: int
    vocab_size: int
    device: torch.device
    counts: TokenCounts | None


class BoundProcessor(Protocol):
    """A processor bound to a group of rows."""

    def __call__(self, candidates: Candidates) -> None:
        """Change the candidates in place; ``scores_SC`` may be written to."""
        ...


def _column(params: Sequence[Params], name: str, context: GroupContext) -> Tensor:
    values = [[float(_scalar(one, name))] for one in params]
    return torch.tensor(values, dtype=torch.float32, device=context.device)


def _scalar(params: Params, name: str) -> float | int:
    value = params[name]
    assert isinstance(value, int | float)
    return value


def _numbers(params: Params, name: str) -> list[int | float]:
    value = params[name]
    assert isinstance(value, list)
    return value


class TokenBias:
    """Adds a value to the scores of given tokens; ``bad_words`` adds minus infinity."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        bias_SV = np.zeros((context.num_rows, context.vocab_size), np.float32)
        for row, one in enumerate(params):
            tokens = np.array(_numbers(one, "tokens"), np.int64)
            biases = _numbers(one, "biases") if "biases" in one else -math.inf
            np.add.at(bias_SV[row], tokens, np.asarray(biases, np.float32))
        self._bias_SV = torch.from_numpy(bias_SV).to(context.device)

    def __call__(self, candidates: Candidates) -> None:
        candidates.scores_SC = candidates.scores_SC + candidates.of_vocabulary(self._bias_SV)


class RepetitionPenalty:
    """Divides positive and multiplies negative scores of tokens seen (Keskar et al., 2019)."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        assert context.counts is not None
        self._penalty_S1 = _column(params, "penalty", context)
        self._seen_SV = context.counts.seen_SV

    def __call__(self, candidates: Candidates) -> None:
        scores = candidates.scores_SC
        penalised = torch.where(scores > 0, scores / self._penalty_S1, scores * self._penalty_S1)
        seen = candidates.of_vocabulary(self._seen_SV) > 0
        candidates.scores_SC = torch.where(seen, penalised, scores)


class PresencePenalty:
    """Subtracts the penalty from every token that was sampled before."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        assert context.counts is not None
        self._penalty_S1 = _column(params, "penalty", context)
        self._generated_SV = context.counts.generated_SV

    def __call__(self, candidates: Candidates) -> None:
        present = candidates.of_vocabulary(self._generated_SV) > 0
        candidates.scores_SC = candidates.scores_SC - self._penalty_S1 * present


class FrequencyPenalty:
    """Subtracts the penalty once for every time that the token was sampled before."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        assert context.counts is not None
        self._penalty_S1 = _column(params, "penalty", context)
        self._generated_SV = context.counts.generated_SV

    def __call__(self, candidates: Candidates) -> None:
        counts = candidates.of_vocabulary(self._generated_SV)
        candidates.scores_SC = candidates.scores_SC - self._penalty_S1 * counts


class Temperature:
    """Divides the scores."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        self._temperature_S1 = _column(params, "temperature", context)

    def __call__(self, candidates: Candidates) -> None:
        candidates.scores_SC = candidates.scores_SC / self._temperature_S1


class TopK:
    """Keeps the k best tokens of each row (ties: the lower ids)."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        k = [int(_scalar(one, "k")) for one in params]
        self._largest = min(max(k), context.vocab_size)
        self._k_S1 = torch.tensor(k, device=context.device)[:, None]
        self._uniform = min(k) == max(k)

    def __call__(self, candidates: Candidates) -> None:
        candidates.keep_best(self._largest)
        if not self._uniform:
            rank = torch.arange(candidates.scores_SC.shape[1], device=self._k_S1.device)
            candidates.scores_SC.masked_fill_(rank >= self._k_S1, -math.inf)


class TopP:
    """Keeps the fewest best tokens whose probabilities reach p, at least one (nucleus)."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        p_S1 = _column(params, "p", context).double()
        self._p_S1 = p_S1.masked_fill(p_S1 >= 1.0, math.inf)  # all, whatever the sum rounds to
        self._cuts = bool(p_S1.min() < 1.0)

    def __call__(self, candidates: Candidates) -> None:
        if not self._cuts:
            return
        log_total_S1 = candidates.scores_SC.logsumexp(dim=-1, keepdim=True).double()
        whole = candidates.scores_SC, candidates.ids_SC
        if candidates.ids_SC is None:
            candidates.keep_best(_NUCLEUS_GUESS)
            if not bool((self._mass(candidates, log_total_S1)[:, -1:] >= self._p_S1).all()):
                candidates.scores_SC, candidates.ids_SC = whole
        candidates.best_first()
        probs = (candidates.scores_SC.double() - log_total_S1).exp()
        before = probs.cumsum(dim=-1) - probs
        cut = before >= self._p_S1
        cut[:, 0] = False
        candidates.scores_SC = candidates.scores_SC.masked_fill(cut, -math.inf)

    def _mass(self, candidates: Candidates, log_total_S1: Tensor) -> Tensor:
        return (candidates.scores_SC.double() - log_total_S1).exp().cumsum(dim=-1)


class MinP:
    """Keeps tokens at least p times as likely as the best one."""

    def __init__(self, params: Sequence[Params], context: GroupContext) -> None:
        self._log_p_S1 = _column(params, "p", context).log()

    def __call__(self, candidates: Candidates) -> None:
        scores = candidates.scores_SC
        floor_S1 = scores.amax(dim=-1, keepdim=True) + self._log_p_S1
        candidates.scores_SC = scores.masked_fill(scores < floor_S1, -math.inf)


__all__ = [
    "BoundProcessor",
    "FrequencyPenalty",
    "GroupContext",
    "MinP",
    "PresencePenalty",
    "RepetitionPenalty",
    "Temperature",
    "TokenBias",
    "TokenCounts",
    "TopK",
    "TopP",
]
