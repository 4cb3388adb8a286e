"""The encoder itself: embeddings and layers whose norms stand behind each part (post-LN).

Suffixes of tensors: B sequences, L tokens of the longest, H hidden size, N heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quire.core.errors import UnsupportedModel
from quire.engine.encoders.config import EncoderShape
from quire.engine.layers.parameters import Parameters

_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


class Linear:
    def __init__(self, parameters: Parameters, name: str, num_in: int, num_out: int) -> None:
        self.weight_OI = parameters.tensor(f"{name}.weight", num_out, num_in)
        self.bias_O = parameters.tensor(f"{name}.bias", num_out)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_OI, self.bias_O)


class LayerNorm:
    def __init__(self, parameters: Parameters, name: str, size: int, eps: float) -> None:
        self._weight_H = parameters.tensor(f"{name}.weight", size)
        self._bias_H = parameters.tensor(f"{name}.bias", size)
        self._eps = eps

    def __call__(self, x_BLH: Tensor) -> Tensor:
        size = x_BLH.shape[-1:]
        return functional.layer_norm(x_BLH, size, self._weight_H, self._bias_H, self._eps)


class _Layer:
    def __init__(self, parameters: Parameters, name: str, shape: EncoderShape) -> None:
        size, wide = shape.hidden_size, shape.intermediate_size
        own = f"{name}.attention.self"
        rows = {f"{own}.{part}.weight": size for part in ("query", "key", "value")}
        self._qkv_weight = parameters.fused(rows, size)
        self._qkv_bias = parameters.fused(
            {f"{own}.{part}.bias": size for part in ("query", "key", "value")}
        )
        self._out = Linear(parameters, f"{name}.attention.output.dense", size, size)
        self._norm = LayerNorm(
            parameters, f"{name}.attention.output.LayerNorm", size, shape.norm_eps
        )
        self._up = Linear(parameters, f"{name}.intermediate.dense", size, wide)
        self._down = Linear(parameters, f"{name}.output.dense", wide, size)
        self._last_norm = LayerNorm(parameters, f"{name}.output.LayerNorm", size, shape.norm_eps)
        self._num_heads = shape.num_heads
        self._activation = shape.activation

    def __call__(self, x_BLH: Tensor, visible_B11L: Tensor | None) -> Tensor:
        x_BLH = self._norm(x_BLH + self._out(self._attend(x_BLH, visible_B11L)))
        return self._last_norm(x_BLH + self._down(self._activate(self._up(x_BLH))))

    def _attend(self, x_BLH: Tensor, visible_B11L: Tensor | None) -> Tensor:
        batch, length, size = x_BLH.shape
        qkv = functional.linear(x_BLH, self._qkv_weight, self._qkv_bias)
        qkv_3BNLD = qkv.view(batch, length, 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
        q_BNLD, k_BNLD, v_BNLD = qkv_3BNLD.unbind()
        seen = functional.scaled_dot_product_attention(
            q_BNLD, k_BNLD, v_BNLD, attn_mask=visible_B11L
        )
        return seen.transpose(1, 2).reshape(batch, length, size)

    def _activate(self, x: Tensor) -> Tensor:
        if self._activation == "relu":
            return functional.relu(x)
        return functional.gelu(x, approximate=_GELU[self._activation])


class Transformer:
    """``prefix``: of the tensors' names in the checkpoint, as ``bert.`` or nothing."""

    def __init__(self, parameters: Parameters, prefix: str, shape: EncoderShape) -> None:
        if shape.activation not in (*_GELU, "relu"):
            raise UnsupportedModel(
                f"activation {shape.activation[:40]!r} is not served; {', '.join(_GELU)} and relu "
                "are"
            )
        size = shape.hidden_size
        name = f"{prefix}embeddings"
        self._words_VH = parameters.tensor(f"{name}.word_embeddings.weight", shape.vocab_size, size)
        self._positions_PH = parameters.tensor(
            f"{name}.position_embeddings.weight", shape.num_positions, size
        )
        self._types_KH = parameters.tensor(
            f"{name}.token_type_embeddings.weight", shape.num_types, size
        )
        self._norm = LayerNorm(parameters, f"{name}.LayerNorm", size, shape.norm_eps)
        self._layers = [
            _Layer(parameters, f"{prefix}encoder.layer.{index}", shape)
            for index in range(shape.num_layers)
        ]
        self._first_position = shape.first_position

    def __call__(self, tokens_BL: Tensor, types_BL: Tensor, visible_BL: Tensor) -> Tensor:
        """Hidden states [B, L, H]; those of places that ``visible_BL`` hides mean nothing."""
        first = self._first_position
        positions_LH = self._positions_PH[first : first + tokens_BL.shape[1]]
        x_BLH = self._words_VH[tokens_BL] + positions_LH + self._types_KH[types_BL]
        x_BLH = self._norm(x_BLH)
        mask = None if bool(visible_BL.all()) else visible_BL[:, None, None, :]
        for layer in self._layers:
            x_BLH = layer(x_BLH, mask)
        return x_BLH


def ignored_tensor(name: str) -> bool:
    """Tensors of checkpoints that no head here uses: a language model's head, position ids."""
    return name.endswith("position_ids") or any(
        part in name for part in ("cls.predictions", "cls.seq_relationship", "lm_head.", "pooler.")
    )


def activation_of(name: str) -> torch.nn.Module | None:
    """The activation that a sentence-transformers module names by its class; None if unknown."""
    known = {
        "Tanh": torch.nn.Tanh,
        "Identity": torch.nn.Identity,
        "ReLU": torch.nn.ReLU,
        "GELU": torch.nn.GELU,
        "Sigmoid": torch.nn.Sigmoid,
    }
    found = known.get(name.rpartition(".")[2])
    return None if found is None else found()


__all__ = ["LayerNorm", "Linear", "Transformer", "activation_of", "ignored_tensor"]
