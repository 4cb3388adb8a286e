"""Log probabilities of raw logits: of chosen tokens and of the best alternatives.

Shapes: S rows, V vocabulary, K alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import F32, I32
from quire.engine.sampling.selection import top_k


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """``chosen`` [S], ``top_ids`` and ``top`` [S, K], best first, ties by lower id."""

    chosen: F32
    top_ids: I32
    top: F32


def row_logprobs(logits_SV: Tensor, tokens_S: NDArray[np.int64], num_top: int) -> RowLogprobs:
    """Log softmax of the logits at the tokens and at the ``num_top`` best."""
    log_total_S1 = logits_SV.logsumexp(dim=-1, keepdim=True)
    tokens_S1 = torch.from_numpy(tokens_S).to(logits_SV.device)[:, None]
    chosen = (logits_SV.gather(1, tokens_S1) - log_total_S1)[:, 0].cpu().numpy()
    num_top = min(num_top, logits_SV.shape[1])
    if num_top == 0:
        shape = (len(tokens_S), 0)
        return RowLogprobs(chosen, np.empty(shape, np.int32), np.empty(shape, np.float32))
    values_SK, ids_SK = top_k(logits_SV, num_top)
    return RowLogprobs(
        chosen,
        ids_SK.cpu().numpy().astype(np.int32),
        (values_SK - log_total_S1).cpu().numpy(),
    )
