"""Match lengths for DRY: how long a suffix of the history ends at each earlier place.

``match[i]`` is the largest n such that the n tokens ending at place i equal the last n tokens of
the history and contain no sequence breaker. A new token shifts every match by one place and extends
or ends it, so the cost of a step is proportional to the history, however long the repetition is.

Shapes: R table rows, S requested rows, L tokens, B sequence breakers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.sampling.memory import grown
from quire.engine.sampling.protocol import History

_NO_TOKEN = -1


class DryMatches:
    """Match lengths and breakers of the rows that use DRY."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._matches_RL = torch.zeros((0, 64), dtype=torch.int32, device=device)
        self._breakers_RB = torch.full((0, 4), _NO_TOKEN, dtype=torch.int64, device=device)

    def set(self, row: int, tokens: I32, breakers: Sequence[int]) -> None:
        self._reserve(row + 1, len(tokens) + 1, len(breakers))
        self._breakers_RB[row] = _NO_TOKEN
        self._breakers_RB[row, : len(breakers)] = torch.tensor(breakers, dtype=torch.int64)
        self._matches_RL[row] = 0
        if len(tokens):
            matches = torch.from_numpy(match_lengths(tokens, breakers))
            self._matches_RL[row, : len(tokens)] = matches.to(self._device)

    def append(self, index_S: Tensor, before: History, tokens_S: Tensor) -> None:
        """Add one token to each row; ``before`` is the history without it."""
        width = before.tokens_SL.shape[1]
        self._reserve(0, width + 1, 0)
        old_SL = self._matches_RL[:, :width].index_select(0, index_S)
        longer_SL = torch.nn.functional.pad(old_SL[:, :-1] if width else old_SL, (1, 0))[:, :width]
        same_SL = before.tokens_SL == tokens_S[:, None]
        breaks_S1 = (self.breakers(index_S) == tokens_S[:, None]).any(dim=1, keepdim=True)
        new_SL = torch.where(same_SL & ~breaks_S1, longer_SL + 1, 0)
        self._matches_RL[index_S, :width] = new_SL.to(torch.int32)

    def view(self, index_S: Tensor, width: int) -> Tensor:
        """``[S, L]`` int64 for the first ``width`` places."""
        return self._matches_RL[:, :width].index_select(0, index_S).to(torch.int64)

    def breakers(self, index_S: Tensor) -> Tensor:
        """``[S, B]``, padded with -1."""
        return self._breakers_RB.index_select(0, index_S)

    def _reserve(self, num_rows: int, width: int, num_breakers: int) -> None:
        self._matches_RL = grown(self._matches_RL, num_rows, width, 0)
        self._breakers_RB = grown(self._breakers_RB, num_rows, num_breakers, _NO_TOKEN)


def match_lengths(tokens: I32, breakers: Sequence[int]) -> NDArray[np.int32]:
    """The match lengths of a whole history, 0 for its last place: the Z function (Gusfield, 1997)
    of the reversed history, in which breakers are equal to nothing."""
    broken = np.isin(tokens, np.array(breakers, np.int64))
    symbols = np.where(broken, -1 - np.arange(len(tokens)), tokens)[::-1].tolist()
    length = len(symbols)
    found = [0] * length
    left = right = 0
    for start in range(1, length):
        size = min(right - start, found[start - left]) if start < right else 0
        while start + size < length and symbols[size] == symbols[start + size]:
            size += 1
        found[start] = size
        if start + size > right:
            left, right = start, start + size
    return np.array(found[::-1], np.int32)
