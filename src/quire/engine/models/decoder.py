"""The decoder that all families share, in PyTorch: the definition that other backends must equal.

A family is a ``DecoderConfig``, read by its own module. A family whose structure it cannot express
defines its own class with the same interface (``CausalLM``).

Backends that convert weights traverse a built ``Decoder``: every attribute named in the docstrings
of the layers is final after loading (fused, dequantised, transposed and with norm offsets added),
and may be replaced by an empty tensor once it has been taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.attention import Attention, ModelStep
from quire.engine.layers.experts import Experts
from quire.engine.layers.mlp import GatedMLP
from quire.engine.layers.norm import RMSNorm
from quire.engine.layers.parameters import Parameters
from quire.engine.layers.rotary import RotaryEmbedding, Rotation
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig


class CausalLM(Protocol):
    """The step loop's interface to a model. T tokens, H hidden size, V vocabulary, N rows."""

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Input embeddings ``[T, H]``."""
        ...

    def rotations(self, positions_T: Tensor) -> list[Rotation]:
        """A step's rotations, in the order of the model's ropes."""
        ...

    def forward(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        """Final hidden states ``[T, H]``, after the last norm. Writes K and V of the step."""
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Logits ``[N, V]`` in float32."""
        ...


class DecoderLayer:
    """Attention, then an MLP or experts, each added to the residual stream.

    ``attention_norm`` and ``mlp_norm`` precede them, ``attention_output_norm`` and
    ``mlp_output_norm`` follow them; ``norm_placement`` determines which of the four exist.

    ``combine`` sums the partial results of tensor-parallel ranks; None: there is one rank.
    """

    def __init__(self, config: DecoderConfig, parameters: Parameters, number: int) -> None:
        layer = config.layers[number]
        prefix = config.name(f"layers.{number}")
        names = _norm_names(config)

        def norm(place: str) -> RMSNorm | None:
            if place not in names:
                return None
            return RMSNorm(
                parameters, f"{prefix}.{names[place]}.weight", config.hidden_size, config.norm
            )

        self.config = layer
        self.attention_norm = norm("attention_norm")
        self.attention = Attention(
            parameters,
            f"{prefix}.self_attn",
            config.hidden_size,
            config.attention,
            config.norm,
            layer=number,
            window=layer.window,
            rope=layer.rope,
        )
        self.attention_output_norm = norm("attention_output_norm")
        self.mlp_norm = norm("mlp_norm")
        self.mlp = _make_mlp(config, layer, parameters, prefix)
        self.mlp_output_norm = norm("mlp_output_norm")
        self.residual_multiplier = config.residual_multiplier
        self.combine: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        y_TH = self._combined(self.attention(_normed(self.attention_norm, x_TH), step))
        x_TH = self._add(x_TH, _normed(self.attention_output_norm, y_TH))
        y_TH = self._combined(self.mlp(_normed(self.mlp_norm, x_TH)))
        return self._add(x_TH, _normed(self.mlp_output_norm, y_TH))

    def _combined(self, y_TH: Tensor) -> Tensor:
        return y_TH if self.combine is None else self.combine(y_TH)

    def _add(self, x_TH: Tensor, y_TH: Tensor) -> Tensor:
        if self.residual_multiplier != 1:
            y_TH = y_TH.mul_(self.residual_multiplier)
        return y_TH.add_(x_TH)


_NORM_NAMES = {
    "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "post": {
        "attention_output_norm": "post_attention_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    },
    "sandwich": {
        "attention_norm": "input_layernorm",
        "attention_output_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    },
}
"""The checkpoint's names of a layer's norms; one name is used for two different norms."""


_PLACES = ("attention_norm", "attention_output_norm", "mlp_norm", "mlp_output_norm")


def _norm_names(config: DecoderConfig) -> Mapping[str, str]:
    """The names of a layer's norms in the checkpoint, by the place of each that there is."""
    usual = _NORM_NAMES[config.norm_placement]
    if not config.norm_names:
        return usual
    places = [place for place in _PLACES if place in usual]
    return dict(zip(places, config.norm_names, strict=True))


def _make_mlp(
    config: DecoderConfig, layer: LayerConfig, parameters: Parameters, prefix: str
) -> GatedMLP | Experts:
    if layer.experts:
        assert config.experts is not None
        place = "block_sparse_moe" if config.experts.storage in ("mixtral", "granite") else "mlp"
        return Experts(parameters, f"{prefix}.{place}", config.hidden_size, config.experts)
    assert config.mlp is not None
    place = "shared_mlp" if config.mlp.storage == "granite" else "mlp"
    return GatedMLP(parameters, f"{prefix}.{place}", config.hidden_size, config.mlp)


def _normed(norm: RMSNorm | None, x_TH: Tensor) -> Tensor:
    return x_TH if norm is None else norm(x_TH)


class Decoder:
    """Embedding, layers, norm and output projection; implements ``CausalLM``.

    ``embedding_VH`` and ``output_VH`` are one tensor where embeddings are tied. ``layers`` are
    ``DecoderLayer``; ``norm`` is the last norm; ``ropes`` are ``RotaryEmbedding``, indexed by
    ``LayerConfig.rope``. ``project`` multiplies by ``output_VH``; a backend may replace it by its
    own product.
    """

    def __init__(self, config: DecoderConfig, parameters: Parameters) -> None:
        self.config = config
        self.project: Callable[[Tensor, Tensor], Tensor] = F.linear
        size = (config.vocab_size, config.hidden_size)
        self.embedding_VH = parameters.tensor(config.name("embed_tokens.weight"), *size)
        self.layers = [
            DecoderLayer(config, parameters, number) for number in range(config.num_layers)
        ]
        self.norm = RMSNorm(parameters, config.name("norm.weight"), config.hidden_size, config.norm)
        self.output_VH = (
            self.embedding_VH
            if config.tie_embeddings
            else parameters.tensor(config.output_name, *size)
        )
        self.ropes = [
            RotaryEmbedding(rope, config.head_dim, parameters.device, parameters.dtype)
            for rope in config.ropes
        ]

    def embed(self, tokens_T: Tensor) -> Tensor:
        x_TH = F.embedding(tokens_T, self.embedding_VH)
        multiplier = self.config.embedding_multiplier
        return x_TH if multiplier == 1 else x_TH * multiplier

    def rotations(self, positions_T: Tensor) -> list[Rotation]:
        return [rope.at(positions_T) for rope in self.ropes]

    def forward(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        for number, layer in enumerate(self.layers, 1):
            x_TH = layer(x_TH, step)
            if step.on_layer is not None:
                step.on_layer(number)
        return self.norm(x_TH)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        logits_NV = self.project(hidden_NH, self.output_VH).float()
        if self.config.logit_multiplier != 1:
            logits_NV = logits_NV.mul_(self.config.logit_multiplier)
        softcap = self.config.logit_softcap
        return logits_NV if softcap is None else (logits_NV / softcap).tanh_().mul_(softcap)
