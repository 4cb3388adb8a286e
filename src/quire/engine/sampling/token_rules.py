"""Rules about single tokens and words: biases, forbidden words, allowed tokens.

Shapes: S rows, V vocabulary, N entries of all rows, W words of all rows, P tokens before a word's
last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.columns import entries
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.protocol import Rows

_ANY = -1


class LogitBias:
    """Adds a value to the scores of given tokens. Several biases of one token are summed first, in
    float64."""

    def __init__(self, params: Sequence[Params], rows: Rows) -> None:
        of_rows, tokens, biases = [], [], []
        for row, one in enumerate(params):
            named, places = np.unique(
                np.array(entries(one, "tokens"), np.int64), return_inverse=True
            )
            summed = np.bincount(
                places, np.array(entries(one, "biases"), np.float64), minlength=len(named)
            )
            of_rows.append(np.full(len(named), row))
            tokens.append(named)
            biases.append(summed.astype(np.float32))
        self._rows_N, self._tokens_N, self._biases_N = (
            torch.from_numpy(np.concatenate(parts)).to(rows.device)
            for parts in (of_rows, tokens, biases)
        )

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        candidates.edit(
            lambda scores_SV: scores_SV.index_put_(
                (self._rows_N, self._tokens_N), self._biases_N, accumulate=True
            )
        )


class BadWords:
    """Excludes tokens, and the last token of a word of several tokens when the others precede it.

    Tokens of the prompt count too: a word may begin there.
    """

    def __init__(self, params: Sequence[Params], rows: Rows) -> None:
        words = [
            (row, word if isinstance(word, list) else [int(word)])
            for row, one in enumerate(params)
            for word in entries(one, "tokens")
        ]
        num_before = max((len(word) for _, word in words), default=1) - 1
        before = [[_ANY] * (num_before + 1 - len(word)) + list(word[:-1]) for _, word in words]
        self._rows_W = torch.tensor([row for row, _ in words], dtype=torch.int64)
        self._last_W = torch.tensor([word[-1] for _, word in words], dtype=torch.int64)
        self._before_WP = torch.tensor(before, dtype=torch.int64).view(len(words), num_before)
        self._rows_W = self._rows_W.to(rows.device)
        self._last_W = self._last_W.to(rows.device)
        self._before_WP = self._before_WP.to(rows.device)

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

    def __init__(self, params: Sequence[Params], rows: Rows) -> None:
        excluded_SV = np.ones((rows.num_rows, rows.vocab_size), np.bool_)
        for row, one in enumerate(params):
            excluded_SV[row, np.array(entries(one, "tokens"), np.int64)] = False
        self._excluded_SV = torch.from_numpy(excluded_SV).to(rows.device)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        candidates.edit(self._exclude)

    def _exclude(self, scores_SV: Tensor) -> None:
        scores_SV.masked_fill_(self._excluded_SV, -math.inf)


def needs_history(params: Params) -> bool:
    """Whether these bad words include one of several tokens."""
    return any(isinstance(word, list) and len(word) > 1 for word in entries(params, "tokens"))
