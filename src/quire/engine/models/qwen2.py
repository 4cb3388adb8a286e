"""Qwen2 and Qwen2.5: Llama's decoder with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.norm import QKNormKind
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_layers,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig


def read_qwen2(config: ConfigReader) -> DecoderConfig:
    return read_qwen(config, qkv_bias=True, output_bias=False)


def read_qwen(
    config: ConfigReader,
    *,
    qkv_bias: bool,
    output_bias: bool,
    qk_norm: QKNormKind | None = None,
) -> DecoderConfig:
    """Windows, which most checkpoints disable, begin at layer ``max_window_layers``."""
    plain = read_decoder(
        config,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        activation=read_activation(config, SILU),
    )
    if not config.flag("use_sliding_window", False):
        config.set_aside("sliding_window", "layer_types")
        config = config.without("sliding_window", "layer_types")
    window = read_window(config)
    first = config.integer("max_window_layers", 1 << 20, low=0, default=28)
    layers = read_layers(config, plain.num_layers, window, lambda layer: layer >= first)
    return replace(plain, layers=layers)
