"""OLMoE: a mixture of experts in every layer, norms over all query heads and all key heads
together."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.experts import ExpertsConfig
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_num_experts,
    refuse_windows,
)
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig


def read_olmoe(config: ConfigReader) -> DecoderConfig:
    refuse_windows(config)
    bias = config.flag("attention_bias", False)
    activation = read_activation(config, SILU)
    plain = read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="whole",
        activation=activation,
        norm_eps=1e-5,
    )
    assert plain.mlp is not None
    name = "num_experts" if config.has("num_experts") else "num_local_experts"
    num_experts, top_k = read_num_experts(config, name, default_top_k=8)
    experts = ExpertsConfig(
        num_experts,
        top_k,
        plain.mlp.intermediate_size,
        activation,
        normalize=config.flag("norm_topk_prob", False),
        storage="qwen3_moe",
    )
    layers = (LayerConfig(experts=True),) * plain.num_layers
    return replace(plain, layers=layers, mlp=None, experts=experts)
