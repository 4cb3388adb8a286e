"""OLMo 2: norms after attention and MLP only, and over all query heads and all key heads
together."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import SILU, read_activation, read_decoder, refuse_windows
from quire.engine.models.decoder_config import DecoderConfig


def read_olmo2(config: ConfigReader) -> DecoderConfig:
    refuse_windows(config)
    return read_olmo(config)


def read_olmo(config: ConfigReader) -> DecoderConfig:
    bias = config.flag("attention_bias", False)
    plain = read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="whole",
        activation=read_activation(config, SILU),
        norm_eps=1e-5,
    )
    return replace(plain, norm_placement="post")
