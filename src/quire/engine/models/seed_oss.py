"""Seed-OSS: Llama's decoder with biases of its own for queries, keys and values."""

from __future__ import annotations

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import SILU, read_activation, read_decoder, refuse_windows
from quire.engine.models.decoder_config import DecoderConfig


def read_seed_oss(config: ConfigReader) -> DecoderConfig:
    refuse_windows(config)
    return read_decoder(
        config.over({"head_dim": 128}),
        qkv_bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_out_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        activation=read_activation(config, SILU),
    )
