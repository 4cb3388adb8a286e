"""Phi-3, Phi-3.5 and Phi-4: Llama's decoder stored with fused projections; LongRoPE, windows."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig


def read_phi3(config: ConfigReader) -> DecoderConfig:
    plain = read_decoder(config, activation=read_activation(config, SILU), norm_eps=1e-5)
    assert plain.mlp is not None
    return replace(
        plain,
        attention=replace(plain.attention, fused=True),
        mlp=replace(plain.mlp, storage="fused"),
        layers=(LayerConfig(window=read_window(config)),) * plain.num_layers,
    )
