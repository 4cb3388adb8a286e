"""Qwen3-MoE: Qwen3 with a mixture of experts in most layers."""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import ModelFormatError
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.experts import ExpertsConfig
from quire.engine.models.common_fields import (
    MAX_SIZE,
    SILU,
    read_activation,
    read_decoder,
    read_num_experts,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig


def read_qwen3_moe(config: ConfigReader) -> DecoderConfig:
    """A window, if enabled, applies to every layer."""
    bias = config.flag("attention_bias", False)
    activation = read_activation(config, SILU)
    plain = read_decoder(
        config, qkv_bias=bias, output_bias=bias, qk_norm="head", activation=activation
    )
    name = "num_experts" if config.has("num_experts") else "num_local_experts"
    num_experts, top_k = read_num_experts(config, name, default_top_k=8)
    window = None
    if config.flag("use_sliding_window", False):
        window = read_window(config)
    config.set_aside("sliding_window", "max_window_layers")
    step = config.integer("decoder_sparse_step", 1 << 20, default=1)
    dense = _dense_layers(config)
    layers = tuple(
        LayerConfig(window=window, experts=layer not in dense and (layer + 1) % step == 0)
        for layer in range(plain.num_layers)
    )
    experts = ExpertsConfig(
        num_experts,
        top_k,
        config.integer("moe_intermediate_size", MAX_SIZE),
        activation,
        normalize=config.flag("norm_topk_prob", False),
        storage="qwen3_moe",
    )
    return replace(plain, layers=layers, experts=experts)


def _dense_layers(config: ConfigReader) -> frozenset[int]:
    layers = config.raw("mlp_only_layers") or []
    if not isinstance(layers, list) or not all(type(one) is int for one in layers):
        raise ModelFormatError(
            f"{config.where} has mlp_only_layers = {str(layers)[:80]!r}; it must be a list of "
            "layer numbers: the file is damaged"
        )
    return frozenset(layers)
