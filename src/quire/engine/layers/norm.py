"""Root mean square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.parameters import Parameters


class RMSNorm:
    """``x / rms(x) * weight`` over the last axis."""

    def __init__(self, parameters: Parameters, name: str, size: int, eps: float) -> None:
        self.weight_H = parameters.tensor(name, size)
        self.shape = (size,)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.shape, self.weight_H, self.eps)


class HeadNorm:
    """RMS normalisation of every query and key head, with one weight for each kind (Qwen3).

    Queries and keys lie side by side, ``[T, num_heads + num_kv_heads, head_dim]``, so that both are
    normalised in one call.
    """

    def __init__(
        self,
        parameters: Parameters,
        prefix: str,
        head_dim: int,
        num_heads: int,
        eps: float,
    ) -> None:
        self.weights_2D = parameters.fused(
            {f"{prefix}.q_norm.weight": head_dim, f"{prefix}.k_norm.weight": head_dim}
        ).view(2, head_dim)
        self.num_heads = num_heads
        self.shape = (head_dim,)
        self.eps = eps

    def __call__(self, qk_THD: Tensor) -> Tensor:
        normed = F.rms_norm(qk_THD, self.shape, None, self.eps)
        normed[:, : self.num_heads] *= self.weights_2D[0]
        normed[:, self.num_heads :] *= self.weights_2D[1]
        return normed
