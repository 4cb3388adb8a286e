"""ModernBERT (Warner et al. 2024): pre-norm, rotary positions, gated MLPs, windows in most layers.

Suffixes of tensors: B sequences, L tokens of the longest, H hidden size, N heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quire.engine.encoders.modernbert_config import ModernBertShape
from quire.engine.encoders.transformer import DenseLayer, activation_function
from quire.engine.layers.norm import LayerNorm
from quire.engine.layers.parameters import Parameters


class _Layer:
    def __init__(
        self, parameters: Parameters, name: str, shape: ModernBertShape, number: int
    ) -> None:
        size = shape.hidden_size
        eps, bias = shape.norm_eps, shape.norm_bias
        self._norm = (  # the first layer has none, because the embeddings' norm precedes it
            LayerNorm(parameters, f"{name}.attn_norm", size, eps, bias=bias) if number else None
        )
        has_bias = shape.attention_bias
        self._qkv = DenseLayer(parameters, f"{name}.attn.Wqkv", size, 3 * size, bias=has_bias)
        self._out = DenseLayer(parameters, f"{name}.attn.Wo", size, size, bias=has_bias)
        self._mlp_norm = LayerNorm(parameters, f"{name}.mlp_norm", size, eps, bias=bias)
        wide = shape.intermediate_size
        self._up = DenseLayer(parameters, f"{name}.mlp.Wi", size, 2 * wide, bias=shape.mlp_bias)
        self._down = DenseLayer(parameters, f"{name}.mlp.Wo", wide, size, bias=shape.mlp_bias)
        self._activation = activation_function(shape.activation)
        self._num_heads = shape.num_heads

    def __call__(
        self, x_BLH: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        normed_BLH = x_BLH if self._norm is None else self._norm(x_BLH)
        x_BLH = x_BLH + self._attend(normed_BLH, mask, rotation)
        inner, gate = self._up(self._mlp_norm(x_BLH)).chunk(2, dim=-1)
        return x_BLH + self._down(self._activation(inner) * gate)

    def _attend(
        self, x_BLH: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        batch, length, size = x_BLH.shape
        qkv_BL3ND = self._qkv(x_BLH).view(batch, length, 3, self._num_heads, -1)
        q_BNLD, k_BNLD, v_BNLD = qkv_BL3ND.permute(2, 0, 3, 1, 4).unbind()
        seen_BNLD = functional.scaled_dot_product_attention(
            _rotated(q_BNLD, *rotation), _rotated(k_BNLD, *rotation), v_BNLD, attn_mask=mask
        )
        return self._out(seen_BNLD.transpose(1, 2).reshape(batch, length, size))


class ModernBert:
    """``prefix``: of the tensors' names in the checkpoint, as ``model.`` or empty."""

    def __init__(self, parameters: Parameters, prefix: str, shape: ModernBertShape) -> None:
        self._shape = shape
        size, eps, bias = shape.hidden_size, shape.norm_eps, shape.norm_bias
        self._words_VH = parameters.tensor(
            f"{prefix}embeddings.tok_embeddings.weight", shape.vocab_size, size
        )
        self._norm = LayerNorm(parameters, f"{prefix}embeddings.norm", size, eps, bias=bias)
        self._layers = [
            _Layer(parameters, f"{prefix}layers.{number}", shape, number)
            for number in range(len(shape.reaches))
        ]
        self._last_norm = LayerNorm(parameters, f"{prefix}final_norm", size, eps, bias=bias)

    def __call__(self, tokens_BL: Tensor, types_BL: Tensor, visible_BL: Tensor) -> Tensor:
        """Hidden states [B, L, H], undefined where ``visible_BL`` is false."""
        del types_BL  # ModernBERT has no token types
        x_BLH = self._norm(self._words_VH[tokens_BL])
        length = tokens_BL.shape[1]
        head_dim = self._shape.hidden_size // self._shape.num_heads
        full, local = (_rotation(theta, length, head_dim, x_BLH) for theta in self._shape.thetas)
        masks: dict[int | None, Tensor | None] = {
            reach: _mask(visible_BL, reach) for reach in set(self._shape.reaches)
        }
        for layer, reach in zip(self._layers, self._shape.reaches, strict=True):
            x_BLH = layer(x_BLH, masks[reach], full if reach is None else local)
        return self._last_norm(x_BLH)


def _mask(visible_BL: Tensor, reach: int | None) -> Tensor | None:
    """The keys that each query sees, bool [B, 1, 1 or L, L]; None: all."""
    length = visible_BL.shape[1]
    seen_B11L = visible_BL[:, None, None, :]
    if reach is None or reach >= length - 1:
        return None if bool(visible_BL.all()) else seen_B11L
    places_L = torch.arange(length, device=visible_BL.device)
    near_LL = (places_L[:, None] - places_L[None, :]).abs() <= reach
    itself_LL = torch.eye(length, dtype=torch.bool, device=visible_BL.device)
    # a hidden query sees at least itself, because softmax needs one key
    return (seen_B11L & near_LL) | itself_LL


def _rotation(theta: float, length: int, head_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [L, D] of the positions from 0 on, in float32."""
    exponents = torch.arange(0, head_dim, 2, device=like.device).float() / head_dim
    positions_L = torch.arange(length, device=like.device).float()
    angles_LD = (positions_L[:, None] / theta**exponents).repeat(1, 2)
    return angles_LD.cos(), angles_LD.sin()


def _rotated(x_BNLD: Tensor, cos_LD: Tensor, sin_LD: Tensor) -> Tensor:
    wide = x_BNLD.float()
    lower, upper = wide.chunk(2, dim=-1)
    turned = torch.cat((-upper, lower), dim=-1)
    return (wide * cos_LD + turned * sin_LD).to(x_BNLD.dtype)
