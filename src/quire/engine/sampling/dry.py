"""DRY, "don't repeat yourself" (p-e-w, 2024): penalises continuing a repetition, the more the
longer it is.

For every token t that followed an earlier occurrence of the history's last n >= ``allowed_length``
tokens, with the largest such n, the score of t falls by ``multiplier * base^(n - allowed_length)``.
Matches end at sequence breakers, which are never penalised themselves. The penalty is computed in
float64, rounded to float32 and subtracted.

Shapes: S rows, V vocabulary, L tokens of the longest history.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire.core.decoding import Params
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.columns import column, numbers
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.protocol import Rows

_MAX_PENALTY = 1e30
"""The largest penalty, which keeps scores finite; more would not change the choice."""

_MAX_GROWTH = 1e300
"""The largest power, which keeps it a number when it is multiplied by 0."""


class Dry:
    """Parameters: ``multiplier``, ``base``, ``allowed_length``, ``range`` (0: the whole history;
    else only this number of last tokens is searched), ``breakers``."""

    def __init__(self, params: Sequence[Params], rows: Rows) -> None:
        device = rows.device
        self._multiplier_S1 = column(numbers(params, "multiplier"), device, torch.float64)
        self._base_S1 = column(numbers(params, "base"), device, torch.float64)
        self._allowed_S1 = column(numbers(params, "allowed_length"), device, torch.int64)
        self._range_S1 = column(numbers(params, "range"), device, torch.int64)
        breakers = [sorted(one["breakers"]) for one in params]  # type: ignore[arg-type]
        width = max(map(len, breakers))
        padded = [one + [rows.vocab_size] * (width - len(one)) for one in breakers]
        self._breakers_SB = torch.tensor(padded, dtype=torch.int64, device=device)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        history = memory.history
        width = history.tokens_SL.shape[1]
        if width < 2:
            return
        places_L = torch.arange(width - 1, device=history.device)
        lengths_S1 = history.lengths_S[:, None]
        start_S1 = torch.where(self._range_S1 > 0, lengths_S1 - self._range_S1, 0).clamp_(min=0)
        match_SL = memory.match_lengths[:, :-1].minimum(places_L - start_S1 + 1)
        next_SL = history.tokens_SL[:, 1:]
        penalised_SL = (match_SL >= self._allowed_S1) & (places_L < lengths_S1 - 1) & (next_SL >= 0)
        if self._breakers_SB.shape[1]:
            penalised_SL &= ~self._are_breakers(next_SL)
        excess_SL = (match_SL - self._allowed_S1).double()
        growth_SL = (self._base_S1**excess_SL).clamp_(max=_MAX_GROWTH)
        penalty_SL = (self._multiplier_S1 * growth_SL).clamp_(max=_MAX_PENALTY)
        penalty_SL = torch.where(penalised_SL, penalty_SL, 0.0).to(torch.float32)
        scores_SV = candidates.over_vocabulary()
        penalty_SV = torch.zeros_like(scores_SV)
        penalty_SV.scatter_reduce_(1, next_SL.clamp(min=0), penalty_SL, "amax")
        candidates.edit(lambda writable_SV: writable_SV.sub_(penalty_SV))

    def _are_breakers(self, tokens_SL: torch.Tensor) -> torch.Tensor:
        """Which tokens are breakers of their row: a binary search, as a row may have thousands."""
        places_SL = torch.searchsorted(self._breakers_SB, tokens_SL.contiguous())
        places_SL.clamp_(max=self._breakers_SB.shape[1] - 1)
        return self._breakers_SB.gather(1, places_SL) == tokens_SL
