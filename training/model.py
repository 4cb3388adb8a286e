"""Defines the trainer's Llama: the arithmetic of ``LlamaForCausalLM``, laid out for packed CPU
training.

A step sees one flat axis of N tokens.  Everything but attention is per token, has the static shape
``[N, width]`` and is compiled once; attention runs over groups of equally long rows, so that
documents of any length mix in one step without a mask.  Padding stands at the end of a row, where
a causal model cannot see it.

Shapes: N tokens of a step, D width, H query heads, K key/value heads, E head size, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.attention import RowGroup, attend
from training.fused import Attend, attention_for

_LAYER_NAMES = {
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def llama_name(name: str) -> str:
    """Return a parameter's name in ``LlamaForCausalLM``."""
    if name == "embedding":
        return "model.embed_tokens.weight"
    if name == "norm.weight":
        return "model.norm.weight"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that ``config.json`` repeats."""

    vocab_size: int
    width: int = 256
    num_layers: int = 6
    num_heads: int = 8
    num_kv_heads: int = 4
    head_size: int = 32
    hidden_size: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_ND: Tensor) -> Tensor:
        x = x_ND.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x * self.weight).to(x_ND.dtype)


class Linear(nn.Module):
    """A bias-free product in the type of its input over an fp32 master weight."""

    def __init__(self, in_size: int, out_size: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_size, in_size) * std)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def rotate(x_NHE: Tensor, cos_N1E: Tensor, sin_N1E: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout that Hugging Face Llama uses."""
    first, second = x_NHE.float().chunk(2, -1)
    cos, sin = cos_N1E, sin_N1E
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x_NHE.dtype)


class Block(nn.Module):
    """One decoder layer, split at attention so that both halves compile with static shapes."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        d, out_std = shape.width, 0.02 / math.sqrt(2 * shape.num_layers)
        q_size, kv_size = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        self.input_norm = RMSNorm(d, shape.norm_eps)
        self.q = Linear(d, q_size, 0.02)
        self.k = Linear(d, kv_size, 0.02)
        self.v = Linear(d, kv_size, 0.02)
        self.o = Linear(q_size, d, out_std)
        self.mlp_norm = RMSNorm(d, shape.norm_eps)
        self.gate = Linear(d, shape.hidden_size, 0.02)
        self.up = Linear(d, shape.hidden_size, 0.02)
        self.down = Linear(shape.hidden_size, d, out_std)

    def project(self, x_ND: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of every token, rotated."""
        h, size = self.input_norm(x_ND), self.shape.head_size
        q = rotate(self.q(h).view(len(x_ND), -1, size), cos, sin)
        k = rotate(self.k(h).view(len(x_ND), -1, size), cos, sin)
        return q, k, self.v(h).view(len(x_ND), -1, size)

    def finish(self, x_ND: Tensor, y_ND: Tensor) -> Tensor:
        """Output projection and feed-forward, with both residual sums."""
        x_ND = x_ND + self.o(y_ND)
        h = self.mlp_norm(x_ND)
        update: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return x_ND + update


class Model(nn.Module):
    """Embedding, decoder layers and final norm; the output head is the embedding.

    ``dtype``: of activations and products; weights are fp32.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: ModelShape, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.attend: Attend = attend
        self.embedding = nn.Parameter(torch.randn(shape.vocab_size, shape.width) * 0.02)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.num_layers)])
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        exponent = torch.arange(0, shape.head_size, 2).float() / shape.head_size
        angles = torch.arange(shape.max_positions).float()[:, None] / shape.rope_theta**exponent
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens_N: Tensor, positions_N: Tensor, groups: Sequence[RowGroup]) -> Tensor:
        """Return final hidden states ``[N, D]``."""
        x_ND = F.embedding(tokens_N, self.embedding).to(self.dtype)
        cos, sin = self.cos[positions_N][:, None], self.sin[positions_N][:, None]
        for block in self.blocks:
            assert isinstance(block, Block)
            q, k, v = block.project(x_ND, cos, sin)
            x_ND = block.finish(x_ND, self.attend(q, k, v, groups))
        final: Tensor = self.norm(x_ND)
        return final

    def compile_layers(self) -> None:
        """Fuse attention and the per-token halves of every layer, as this processor allows."""
        self.attend = attention_for(self.dtype, self.shape.head_size)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.project = torch.compile(block.project, dynamic=False)  # type: ignore[method-assign]
            block.finish = torch.compile(block.finish, dynamic=False)  # type: ignore[method-assign]


def weighted_loss(
    model: Model, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted cross entropy over the rows with weight, and the mean over those of full weight."""
    rows = weights_N.nonzero()[:, 0]
    weights = weights_N[rows]
    logits_RV = F.linear(hidden_ND[rows], model.embedding.to(hidden_ND.dtype)).float()
    losses = F.cross_entropy(logits_RV, targets_N[rows], reduction="none")
    answers = losses.detach()[weights == 1.0]
    return (losses * weights).sum() / weights.sum(), answers.mean()
