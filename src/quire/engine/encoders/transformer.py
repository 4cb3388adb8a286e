"""BERT-like encoders: embeddings, and layers with a norm after each part (post-LN).

BERT and RoBERTa add position embeddings to the token embeddings; MPNet also adds a bias to the
attention scores that depends on the distance of two tokens.

Suffixes of tensors: B sequences, L tokens of the longest, H hidden size, N heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from quire.core.errors import UnsupportedModel
from quire.engine.encoders.config import BertShape
from quire.engine.layers.norm import LayerNorm
from quire.engine.layers.parameters import Parameters

_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


class DenseLayer:
    """``y = x W^T + b``, without the fusion and adapters of ``layers.linear.Linear``."""

    def __init__(
        self, parameters: Parameters, name: str, num_in: int, num_out: int, *, bias: bool = True
    ) -> None:
        self.weight_OI = parameters.tensor(f"{name}.weight", num_out, num_in)
        self.bias_O = parameters.tensor(f"{name}.bias", num_out) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_OI, self.bias_O)


class _Layer:
    def __init__(self, parameters: Parameters, name: str, shape: BertShape) -> None:
        size, wide = shape.hidden_size, shape.intermediate_size
        parts, out, norm = _MPNET_NAMES if shape.num_buckets else _BERT_NAMES
        self._qkv_weight = parameters.fused(
            {f"{name}.attention.{part}.weight": size for part in parts}, size
        )
        self._qkv_bias = parameters.fused({f"{name}.attention.{part}.bias": size for part in parts})
        self._out = DenseLayer(parameters, f"{name}.attention.{out}", size, size)
        self._norm = LayerNorm(parameters, f"{name}.attention.{norm}", size, shape.norm_eps)
        self._up = DenseLayer(parameters, f"{name}.intermediate.dense", size, wide)
        self._down = DenseLayer(parameters, f"{name}.output.dense", wide, size)
        self._last_norm = LayerNorm(parameters, f"{name}.output.LayerNorm", size, shape.norm_eps)
        self._num_heads = shape.num_heads
        self._activate = activation_function(shape.activation)

    def __call__(self, x_BLH: Tensor, mask: Tensor | None) -> Tensor:
        """``mask``: which keys are seen, or a bias for their scores; None: all are seen."""
        x_BLH = self._norm(x_BLH + self._out(self._attend(x_BLH, mask)))
        return self._last_norm(x_BLH + self._down(self._activate(self._up(x_BLH))))

    def _attend(self, x_BLH: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, size = x_BLH.shape
        qkv = functional.linear(x_BLH, self._qkv_weight, self._qkv_bias)
        qkv_3BNLD = qkv.view(batch, length, 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
        q_BNLD, k_BNLD, v_BNLD = qkv_3BNLD.unbind()
        seen = functional.scaled_dot_product_attention(q_BNLD, k_BNLD, v_BNLD, attn_mask=mask)
        return seen.transpose(1, 2).reshape(batch, length, size)


_BERT_NAMES = (("self.query", "self.key", "self.value"), "output.dense", "output.LayerNorm")
_MPNET_NAMES = (("attn.q", "attn.k", "attn.v"), "attn.o", "LayerNorm")
"""The checkpoint's names within ``attention``: projections, output, norm."""


class DistanceBias:
    """MPNet's bias for the attention score of two tokens, by head and distance bucket. Each small
    distance has its own bucket, larger ones share buckets of growing width, separately for each
    direction."""

    _FURTHEST = 128

    def __init__(self, parameters: Parameters, name: str, num_buckets: int, num_heads: int) -> None:
        self._bias_KN = parameters.tensor(f"{name}.weight", num_buckets, num_heads)
        self._half = num_buckets // 2

    def __call__(self, length: int) -> Tensor:
        """[N, L, L] by query and key."""
        places_L = torch.arange(length, device=self._bias_KN.device)
        ahead_LL = places_L[None, :] - places_L[:, None]
        distance_LL, exact = ahead_LL.abs(), self._half // 2
        far_LL = (distance_LL.float() / exact).log() / math.log(self._FURTHEST / exact)
        far_LL = exact + (far_LL.clamp(min=0) * (self._half - exact)).long()
        bucket_LL = torch.where(distance_LL < exact, distance_LL, far_LL.clamp(max=self._half - 1))
        return self._bias_KN[bucket_LL + (ahead_LL > 0) * self._half].permute(2, 0, 1)


class Transformer:
    """``prefix``: of the tensors' names in the checkpoint, as ``bert.`` or empty."""

    def __init__(self, parameters: Parameters, prefix: str, shape: BertShape) -> None:
        size = shape.hidden_size
        name = f"{prefix}embeddings"
        self._words_VH = parameters.tensor(f"{name}.word_embeddings.weight", shape.vocab_size, size)
        self._positions_PH = parameters.tensor(
            f"{name}.position_embeddings.weight", shape.num_positions, size
        )
        self._types_KH = (
            parameters.tensor(f"{name}.token_type_embeddings.weight", shape.num_types, size)
            if shape.num_types
            else None
        )
        self._norm = LayerNorm(parameters, f"{name}.LayerNorm", size, shape.norm_eps)
        self._layers = [
            _Layer(parameters, f"{prefix}encoder.layer.{index}", shape)
            for index in range(shape.num_layers)
        ]
        self._bias = (
            DistanceBias(
                parameters,
                f"{prefix}encoder.relative_attention_bias",
                shape.num_buckets,
                shape.num_heads,
            )
            if shape.num_buckets
            else None
        )
        self._first_position = shape.first_position

    def __call__(self, tokens_BL: Tensor, types_BL: Tensor, visible_BL: Tensor) -> Tensor:
        """Hidden states [B, L, H], undefined where ``visible_BL`` is false."""
        first = self._first_position
        positions_LH = self._positions_PH[first : first + tokens_BL.shape[1]]
        x_BLH = self._words_VH[tokens_BL] + positions_LH
        if self._types_KH is not None:
            x_BLH = x_BLH + self._types_KH[types_BL]
        x_BLH = self._norm(x_BLH)
        mask = self._mask(visible_BL)
        for layer in self._layers:
            x_BLH = layer(x_BLH, mask)
        return x_BLH

    def _mask(self, visible_BL: Tensor) -> Tensor | None:
        seen_B11L = None if bool(visible_BL.all()) else visible_BL[:, None, None, :]
        if self._bias is None:
            return seen_B11L
        bias_NLL = self._bias(visible_BL.shape[1])
        if seen_B11L is None:
            return bias_NLL[None]
        return bias_NLL.masked_fill(~seen_B11L, float("-inf"))


def ignored_tensor(name: str) -> bool:
    """Whether a checkpoint tensor is used by no head here: a language model's head, position
    ids."""
    parts = ("cls.predictions", "cls.seq_relationship", "lm_head.", "pooler.")
    return (
        name.endswith("position_ids")
        or any(part in name for part in parts)
        or name in _MASKED_LM_OF_MODERNBERT
    )


_MASKED_LM_OF_MODERNBERT = (
    "head.dense.weight",
    "head.norm.weight",
    "decoder.weight",
    "decoder.bias",
)


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of a feed-forward part, by the name in ``config.json``.

    Raises:
        UnsupportedModel: another one.
    """
    if name == "relu":
        return functional.relu
    if name not in _GELU:
        raise UnsupportedModel(
            f"activation {name[:40]!r} is not served; {', '.join(_GELU)} and relu are"
        )
    approximate = _GELU[name]

    def gelu(x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=approximate)

    return gelu


def activation_of(name: str) -> torch.nn.Module | None:
    """The activation for a class name in a sentence-transformers module; None if unknown."""
    known = {
        "Tanh": torch.nn.Tanh,
        "Identity": torch.nn.Identity,
        "ReLU": torch.nn.ReLU,
        "GELU": torch.nn.GELU,
        "Sigmoid": torch.nn.Sigmoid,
    }
    found = known.get(name.rpartition(".")[2])
    return None if found is None else found()
