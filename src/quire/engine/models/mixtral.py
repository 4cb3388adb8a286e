"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.experts import ExpertsConfig
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_num_experts,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig


def read_mixtral(config: ConfigReader) -> DecoderConfig:
    activation = read_activation(config, SILU)
    plain = read_decoder(config, activation=activation, norm_eps=1e-5, theta=1e6)
    assert plain.mlp is not None
    num_experts, top_k = read_num_experts(config, "num_local_experts", default_top_k=2)
    experts = ExpertsConfig(
        num_experts, top_k, plain.mlp.intermediate_size, activation, storage="mixtral"
    )
    layer = LayerConfig(window=read_window(config), experts=True)
    return replace(plain, layers=(layer,) * plain.num_layers, mlp=None, experts=experts)
