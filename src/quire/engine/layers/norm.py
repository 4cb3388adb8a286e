"""Normalisation: RMS (Zhang and Sennrich, 2019) of hidden states and of heads, and LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.parameters import Parameters

QKNormKind = Literal["head", "whole"]


@dataclass(frozen=True, slots=True)
class NormConfig:
    """``eps`` is added to the mean square. A checkpoint stores the weight minus ``offset`` (Gemma
    stores deviations from one); the weights of a built layer have it added already."""

    eps: float
    offset: float = 0.0


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last axis, in the dtype of ``x``."""
    if weight.dtype != x.dtype:
        return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)
    return F.rms_norm(x, weight.shape, weight, eps)


class RMSNorm:
    """``weight_H``: float32 if the configuration has an offset, else the model's dtype."""

    def __init__(self, parameters: Parameters, name: str, size: int, config: NormConfig) -> None:
        self.weight_H = parameters.norm_weight(name, size, config.offset)
        self.eps = config.eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight_H, self.eps)


class LayerNorm:
    """LayerNorm over the last axis (Ba et al., 2016), as encoders and vision towers use it."""

    def __init__(
        self, parameters: Parameters, name: str, size: int, eps: float, *, bias: bool = True
    ) -> None:
        self.weight_H = parameters.tensor(f"{name}.weight", size)
        self.bias_H = parameters.tensor(f"{name}.bias", size) if bias else None
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight_H.shape, self.weight_H, self.bias_H, self.eps)


class QKNorm:
    """RMS normalisation of queries and keys before the rotation.

    ``head``: every head separately; ``query_weight`` and ``key_weight`` are ``[D]``, the same for
    all heads (Qwen3, Gemma 3). ``whole``: all heads of a token together; the weights are ``[N *
    D]`` and ``[K * D]`` (OLMo 2).
    """

    def __init__(
        self,
        parameters: Parameters,
        prefix: str,
        kind: QKNormKind,
        heads: tuple[int, int, int],
        config: NormConfig,
    ) -> None:
        num_heads, num_kv_heads, head_dim = heads
        sizes = {
            "head": (head_dim, head_dim),
            "whole": (num_heads * head_dim, num_kv_heads * head_dim),
        }[kind]
        self.kind = kind
        self.num_heads = num_heads
        self.query_weight = parameters.norm_weight(
            f"{prefix}.q_norm.weight", sizes[0], config.offset
        )
        self.key_weight = parameters.norm_weight(f"{prefix}.k_norm.weight", sizes[1], config.offset)
        self.eps = config.eps

    def __call__(self, qk_THD: Tensor) -> Tensor:
        """Normalises queries and keys, concatenated as ``[T, N + K, D]``."""
        if self.kind == "head":
            normed = F.rms_norm(qk_THD, self.query_weight.shape, None, self.eps)
            normed[:, : self.num_heads] *= self.query_weight
            normed[:, self.num_heads :] *= self.key_weight
            return normed
        parts = (qk_THD[:, : self.num_heads], qk_THD[:, self.num_heads :])
        weights = (self.query_weight, self.key_weight)
        return torch.cat(
            [
                rms_norm(part.flatten(1), weight, self.eps).view(part.shape)
                for part, weight in zip(parts, weights, strict=True)
            ],
            dim=1,
        )
