"""The best tokens of the distribution given by logits.

Shapes: S rows, V vocabulary, K best.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.engine.sampling.selection import top_k


def best_of_logits(logits_SV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and probabilities ``[S, K]`` of the ``k`` best tokens, by descending logit, ties to the
    lower id.

    A row whose largest logit is not finite has no distribution: it returns the first ``k`` tokens
    with probabilities NaN.
    """
    probs_SV = logits_SV.softmax(dim=-1)
    _, ids_SK = top_k(logits_SV, k)
    is_number_S1 = torch.isfinite(probs_SV[:, :1])
    ids_SK = torch.where(is_number_S1, ids_SK, torch.arange(k, device=ids_SK.device))
    return ids_SK, probs_SV.gather(1, ids_SK)
