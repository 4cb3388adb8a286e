"""ERNIE 4.5 (dense): Llama's decoder, rotated in pairs of neighbouring elements."""

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


def read_ernie4_5(config: ConfigReader) -> DecoderConfig:
    refuse_windows(config)
    bias = config.flag("use_bias", False)
    plain = read_decoder(
        config.over({"head_dim": 128, "max_position_embeddings": 131_072}),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        activation=read_activation(config, SILU),
        tie_embeddings=True,
        norm_eps=1e-5,
        theta=500_000.0,
    )
    return with_rotated_pairs(plain)
