"""Helium: Llama's decoder, rotated in pairs of neighbouring elements."""

from __future__ import annotations

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    refuse_windows,
    with_rotated_pairs,
)
from quire.engine.models.decoder_config import DecoderConfig


def read_helium(config: ConfigReader) -> DecoderConfig:
    refuse_windows(config)
    plain = read_decoder(
        config.over({"head_dim": 128, "max_position_embeddings": 4096}),
        qkv_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        activation=read_activation(config, SILU),
        norm_eps=1e-8,
        theta=100_000.0,
    )
    return with_rotated_pairs(plain)
