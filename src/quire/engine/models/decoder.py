"""The pre-norm decoder that Llama, Qwen2, Qwen3 and their kin share.

A family is a ``DecoderConfig`` (read by its own module) over this definition; families that differ
in structure bring their own class with the same interface (``CausalLM``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.attention import Attention, AttentionShape, ModelStep
from quire.engine.layers.linear import GatedMLP
from quire.engine.layers.norm import RMSNorm
from quire.engine.layers.parameters import Parameters
from quire.engine.layers.rotary import RopeConfig, RotaryEmbedding


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder's shape. ``head_dim`` need not be ``hidden_size / num_heads``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norm: bool = False


class CausalLM(Protocol):
    """What the step loop asks of a model. T tokens, H hidden size, V vocabulary, N rows."""

    @property
    def rotary(self) -> RotaryEmbedding: ...

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Input embeddings ``[T, H]``."""
        ...

    def forward(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        """Final hidden states ``[T, H]``, after the last norm. Writes K and V of the step."""
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Logits ``[N, V]`` in float32."""
        ...


class DecoderLayer:
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, config: DecoderConfig, parameters: Parameters, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        self.input_norm = RMSNorm(
            parameters, f"{prefix}.input_layernorm.weight", config.hidden_size, config.norm_eps
        )
        self.attention = Attention(
            parameters,
            f"{prefix}.self_attn",
            config.hidden_size,
            AttentionShape(config.num_heads, config.num_kv_heads, config.head_dim),
            layer,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            head_norm_eps=config.norm_eps if config.head_norm else None,
        )
        self.mlp_norm = RMSNorm(
            parameters,
            f"{prefix}.post_attention_layernorm.weight",
            config.hidden_size,
            config.norm_eps,
        )
        self.mlp = GatedMLP(
            parameters,
            f"{prefix}.mlp",
            config.hidden_size,
            config.intermediate_size,
            bias=config.mlp_bias,
        )

    def __call__(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        x_TH = self.attention(self.input_norm(x_TH), step).add_(x_TH)
        return self.mlp(self.mlp_norm(x_TH)).add_(x_TH)


class Decoder:
    """Embedding, layers, norm and output projection; implements ``CausalLM``."""

    def __init__(self, config: DecoderConfig, parameters: Parameters) -> None:
        size = (config.vocab_size, config.hidden_size)
        self.embedding_VH = parameters.tensor("model.embed_tokens.weight", *size)
        self.layers = [
            DecoderLayer(config, parameters, layer) for layer in range(config.num_layers)
        ]
        self.norm = RMSNorm(parameters, "model.norm.weight", config.hidden_size, config.norm_eps)
        self.output_VH = (
            self.embedding_VH
            if config.tie_embeddings
            else parameters.tensor("lm_head.weight", *size)
        )
        self.rotary = RotaryEmbedding(
            config.rope, config.head_dim, parameters.device, parameters.dtype
        )

    def embed(self, tokens_T: Tensor) -> Tensor:
        return F.embedding(tokens_T, self.embedding_VH)

    def forward(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        for layer in self.layers:
            x_TH = layer(x_TH, step)
        return self.norm(x_TH)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        return F.linear(hidden_NH, self.output_VH).float()
