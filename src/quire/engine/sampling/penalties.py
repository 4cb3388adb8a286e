"""Penalties for tokens that occurred before; the cost depends on the number of these tokens, not on
the vocabulary.

Arithmetic in float32 on the scores of the tokens concerned; a row whose penalty is neutral keeps
its scores bit by bit.

Shapes: S rows, V vocabulary, L distinct tokens per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.columns import F64, column
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.protocol import Rows


class RepetitionPenalty:
    """Divides positive and multiplies negative scores of tokens in prompt or output (Keskar et al.,
    2019, CTRL)."""

    def __init__(self, penalty_S: F64, rows: Rows) -> None:
        self._penalty_S1 = column(penalty_S, rows.device)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        counts, penalty_S1 = memory.counts, self._penalty_S1

        def change(scores_SV: Tensor) -> None:
            old_SL = scores_SV.gather(1, counts.tokens_SL)
            new_SL = torch.where(old_SL > 0, old_SL / penalty_S1, old_SL * penalty_S1)
            new_SL = torch.where(counts.seen_SL > 0, new_SL, old_SL)
            scores_SV.scatter_(1, counts.tokens_SL, new_SL)

        candidates.edit(change)


class FrequencyPenalty:
    """Subtracts ``penalty * count`` for tokens of the output."""

    def __init__(self, penalty_S: F64, rows: Rows) -> None:
        self._penalty_S1 = column(penalty_S, rows.device)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        counts = memory.counts
        penalty_SL = self._penalty_S1 * counts.generated_SL
        candidates.edit(lambda scores_SV: _subtract(scores_SV, counts.tokens_SL, penalty_SL))


class PresencePenalty:
    """Subtracts ``penalty`` from tokens of the output, however often they occurred."""

    def __init__(self, penalty_S: F64, rows: Rows) -> None:
        self._penalty_S1 = column(penalty_S, rows.device)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        counts = memory.counts
        penalty_SL = self._penalty_S1 * (counts.generated_SL > 0)
        candidates.edit(lambda scores_SV: _subtract(scores_SV, counts.tokens_SL, penalty_SL))


def _subtract(scores_SV: Tensor, tokens_SL: Tensor, penalty_SL: Tensor) -> None:
    scores_SV.scatter_(1, tokens_SL, scores_SV.gather(1, tokens_SL) - penalty_SL)
