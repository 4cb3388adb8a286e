"""Rules about single tokens and words: biases, forbidden words, allowed tokens. Their lists may be
long, so each row's are made into arrays once, and not whenever the rows of a batch change.

Shapes: S rows, V vocabulary, N entries of all rows, W words of all rows, P tokens before a word's
last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.columns import I64, entries
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.protocol import Rows

_ANY = -1


@dataclass(frozen=True, slots=True)
class Biases:
    """The biases of one row: one for each token ``[N]``."""

    tokens_N: I64
    biases_N: NDArray[np.float32]


def biases(params: Params) -> Biases:
    tokens, places = np.unique(np.array(entries(params, "tokens"), np.int64), return_inverse=True)
    given = np.array(entries(params, "biases"), np.float64)
    summed = np.bincount(places, given, minlength=len(tokens))
    return Biases(tokens, summed.astype(np.float32))


class LogitBias:
    """Adds a value to the scores of given tokens. Several biases of one token are summed first, in
    float64."""

    def __init__(self, biases: Sequence[Biases], rows: Rows) -> None:
        of_rows = [np.full(len(one.tokens_N), row) for row, one in enumerate(biases)]
        self._rows_N, self._tokens_N, self._biases_N = (
            torch.from_numpy(np.concatenate(parts)).to(rows.device)
            for parts in (
                of_rows,
                [one.tokens_N for one in biases],
                [one.biases_N for one in biases],
            )
        )

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        candidates.edit(
            lambda scores_SV: scores_SV.index_put_(
                (self._rows_N, self._tokens_N), self._biases_N, accumulate=True
            )
        )


@dataclass(frozen=True, slots=True)
class BadWordRow:
    """The words of one row: the last token of each ``[W]``, and those before it ``[W, P]``, behind
    ``_ANY`` where a word is shorter than the longest."""

    last_W: I64
    before_WP: I64


def words(params: Params) -> BadWordRow:
    found = [one if isinstance(one, list) else [int(one)] for one in entries(params, "tokens")]
    num_before = max(map(len, found), default=1) - 1
    before = [[_ANY] * (num_before + 1 - len(word)) + word[:-1] for word in found]
    return BadWordRow(
        np.array([word[-1] for word in found], np.int64),
        np.array(before, np.int64).reshape(len(found), num_before),
    )


class BadWords:
    """Excludes tokens, and the last token of a word of several tokens when the others precede it.

    Tokens of the prompt count too: a word may begin there.
    """

    def __init__(self, words: Sequence[BadWordRow], rows: Rows) -> None:
        num_before = max(one.before_WP.shape[1] for one in words)
        before = [
            np.pad(
                one.before_WP,
                ((0, 0), (num_before - one.before_WP.shape[1], 0)),
                constant_values=_ANY,
            )
            for one in words
        ]
        of_rows = [np.full(len(one.last_W), row) for row, one in enumerate(words)]
        self._rows_W, self._last_W, self._before_WP = (
            torch.from_numpy(np.concatenate(parts)).to(rows.device)
            for parts in (of_rows, [one.last_W for one in words], before)
        )

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        num_before = self._before_WP.shape[1]
        shape = self._last_W.shape
        exclusions_W = torch.full(shape, -math.inf, device=self._last_W.device)
        if num_before:
            tail_WP = memory.history.last(num_before).index_select(0, self._rows_W)
            follows_WP = (tail_WP == self._before_WP) | (self._before_WP == _ANY)
            exclusions_W.masked_fill_(~follows_WP.all(dim=1), 0.0)
        # added rather than assigned: words may share a last token
        candidates.edit(
            lambda scores_SV: scores_SV.index_put_(
                (self._rows_W, self._last_W), exclusions_W, accumulate=True
            )
        )


class AllowedTokens:
    """Excludes all but the given tokens."""

    def __init__(self, allowed: Sequence[I64], rows: Rows) -> None:
        excluded_SV = np.ones((rows.num_rows, rows.vocab_size), np.bool_)
        for row, tokens in enumerate(allowed):
            excluded_SV[row, tokens] = False
        self._excluded_SV = torch.from_numpy(excluded_SV).to(rows.device)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        candidates.edit(self._exclude)

    def _exclude(self, scores_SV: Tensor) -> None:
        scores_SV.masked_fill_(self._excluded_SV, -math.inf)


def tokens(params: Params) -> I64:
    return np.array(entries(params, "tokens"), np.int64)


def needs_history(params: Params) -> bool:
    """Whether these bad words include one of several tokens."""
    return any(isinstance(word, list) and len(word) > 1 for word in entries(params, "tokens"))
