"""gpt-oss: experts with biases, attention sinks, a short window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.experts import ExpertsConfig
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_layers,
    read_num_experts,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig

_ALPHA, _LIMIT = 1.702, 7.0
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_gpt_oss(config: ConfigReader) -> DecoderConfig:
    """Read gpt-oss's fields. ``hidden_act`` is silu, but the published code uses the clamped
    form."""
    read_activation(config, SILU)
    _check_clamp(config)
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        config = config.over({"rope_parameters": _ROPE})
    bias = config.flag("attention_bias", True)
    plain = read_decoder(config, qkv_bias=bias, output_bias=bias, norm_eps=1e-5, theta=150_000.0)
    assert plain.mlp is not None
    num_experts, top_k = read_num_experts(config, "num_local_experts", default_top_k=4)
    experts = ExpertsConfig(
        num_experts,
        top_k,
        plain.mlp.intermediate_size,
        activation="clamped_swiglu",
        scoring="chosen",
        router_bias=True,
        expert_bias=True,
        storage="gpt_oss",
    )
    layers = read_layers(
        config, plain.num_layers, read_window(config, 128), lambda layer: layer % 2 == 0
    )
    return replace(
        plain,
        attention=replace(plain.attention, sinks=True),
        layers=tuple(replace(layer, experts=True) for layer in layers),
        mlp=None,
        experts=experts,
    )


def _check_clamp(config: ConfigReader) -> None:
    alpha = config.number("swiglu_alpha", low=0.0, high=1e3, default=_ALPHA)
    limit = config.number("swiglu_limit", low=0.0, high=1e6, default=_LIMIT)
    if (alpha, limit) != (_ALPHA, _LIMIT):
        raise UnsupportedModel(
            f"{config.where} has swiglu_alpha {alpha:g} and swiglu_limit {limit:g}; served are "
            f"{_ALPHA:g} and {_LIMIT:g}"
        )
