"""The whole specification of a decoder, as plain data that every backend reads.

A family's module builds it from ``config.json``; ``quire.engine.models.decoder`` is its definition
in PyTorch. Nothing here depends on a device or on weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from quire.engine.layers.attention import AttentionConfig
from quire.engine.layers.experts import ExpertsConfig
from quire.engine.layers.mlp import MLPConfig
from quire.engine.layers.norm import NormConfig
from quire.engine.layers.rope_config import RopeConfig

NormPlacement = Literal["pre", "post", "sandwich"]


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The parameters that may differ from layer to layer.

    ``window``: see ``AttentionAttributes``. ``rope``: index into ``DecoderConfig.ropes``.
    ``experts``: a mixture of experts replaces the MLP.
    """

    window: int | None = None
    rope: int = 0
    experts: bool = False


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder's shape.

    With attention and MLP as ``f``, a layer adds to the residual stream ``f(norm(x))`` (placement
    ``pre``), ``norm(f(x))`` (``post``, OLMo 2) or ``norm(f(norm(x)))`` (``sandwich``, Gemma 2),
    times ``residual_multiplier``. Embeddings are multiplied by ``embedding_multiplier``; logits by
    ``logit_multiplier`` and then, with ``logit_softcap`` c, replaced by ``c * tanh(logits / c)``.

    ``max_positions``: the longest context that may be served; ``default_positions``: the length
    served by default (None: the same). ``norm_names``: the checkpoint's names of a layer's norms
    before and after attention, before and after the MLP, for those that the placement has; empty:
    the usual ones. ``mlp`` and ``experts`` are None where no layer has them.
    ``prefix``: of the decoder's tensors in the checkpoint, without the last dot (empty: it holds
    nothing else); ``other_parts``: name prefixes of the checkpoint's other tensors.
    """

    vocab_size: int
    hidden_size: int
    max_positions: int
    attention: AttentionConfig
    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...]
    norm: NormConfig
    mlp: MLPConfig | None
    experts: ExpertsConfig | None = None
    norm_placement: NormPlacement = "pre"
    norm_names: tuple[str, ...] = ()
    tie_embeddings: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    default_positions: int | None = None
    prefix: str = "model"
    other_parts: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_heads(self) -> int:
        return self.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.attention.head_dim

    @property
    def rope_of_layer(self) -> tuple[int, ...]:
        """The index in ``ropes`` of each layer's rope."""
        return tuple(layer.rope for layer in self.layers)

    def ignores(self, name: str) -> bool:
        """Whether a checkpoint may hold tensor ``name`` although the decoder does not use it."""
        if name == self.output_name:
            return self.tie_embeddings
        return name.startswith(self.other_parts)

    def name(self, part: str) -> str:
        """The checkpoint's name for ``part`` of the decoder."""
        return f"{self.prefix}.{part}" if self.prefix else part

    @property
    def output_name(self) -> str:
        """The checkpoint's name for the output projection, which is outside of the decoder's
        prefix."""
        return f"{self.prefix.removesuffix('model')}lm_head.weight"

    def for_length(self, num_tokens: int) -> DecoderConfig:
        """The specification for contexts of up to ``num_tokens`` (see ``RopeConfig``)."""
        return replace(self, ropes=tuple(rope.for_length(num_tokens) for rope in self.ropes))
