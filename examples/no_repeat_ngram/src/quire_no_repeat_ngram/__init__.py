"""A sampling processor for Quire: no n-gram occurs twice (Paulus et al., 2017).

Shapes: S rows, V vocabulary, L tokens of the longest history, W windows, N tokens of an n-gram.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.declarations import Number
from quire.engine.sampling.protocol import History, Rows


class NoRepeatNgram:
    """``size``: N; each sequence of N tokens may occur only once."""

    name = "no_repeat_ngram"
    protocol_version = 1
    parameters = {"size": Number(1, 64, integer=True, default=3)}  # noqa: RUF012
    needs_history = True

    def bind(self, params: Sequence[Params], rows: Rows) -> BoundNgrams:
        return BoundNgrams([int(one["size"]) for one in params], rows)  # type: ignore[arg-type]


class BoundNgrams:
    """The processor bound to the rows of a batch, each with its own size."""

    def __init__(self, sizes: Sequence[int], rows: Rows) -> None:
        self._sizes = sorted(set(sizes))
        self._size_S1 = torch.tensor(sizes, device=rows.device)[:, None]

    def __call__(self, scores_SV: Tensor, history: History) -> Tensor:
        banned_SV = torch.zeros_like(scores_SV)
        for size in self._sizes:
            if history.tokens_SL.shape[1] < size:
                continue
            windows_SWN = history.tokens_SL.unfold(1, size, 1)
            last_SW = windows_SWN[:, :, -1]
            tail_S1N = history.last(size - 1)[:, None, :]
            repeats_SW = (windows_SWN[:, :, :-1] == tail_S1N).all(dim=-1)
            repeats_SW &= (last_SW >= 0) & (self._size_S1 == size)
            banned_SV.scatter_add_(1, last_SW.clamp(min=0), repeats_SW.to(scores_SV.dtype))
        return scores_SV.masked_fill(banned_SV > 0, -torch.inf)
