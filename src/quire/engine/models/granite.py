"""Granite 3: Llama's decoder with four multipliers."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.config_reader import ConfigReader
from quire.engine.models.common_fields import SILU, read_activation, read_decoder, refuse_windows
from quire.engine.models.decoder_config import DecoderConfig


def read_granite(config: ConfigReader) -> DecoderConfig:
    refuse_windows(config)
    bias = config.flag("attention_bias", False)
    plain = read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        activation=read_activation(config, SILU),
    )
    return replace(
        plain,
        attention=replace(plain.attention, scale=_multiplier(config, "attention_multiplier")),
        embedding_multiplier=_multiplier(config, "embedding_multiplier"),
        residual_multiplier=_multiplier(config, "residual_multiplier"),
        logit_multiplier=1 / _multiplier(config, "logits_scaling"),
    )


def _multiplier(config: ConfigReader, name: str) -> float:
    return config.number(name, low=1e-6, high=1e6, default=1.0)
