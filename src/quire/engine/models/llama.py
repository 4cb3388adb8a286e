"""Llama 2, 3 and 3.x (and checkpoints that follow its layout): the plain pre-norm decoder."""

from __future__ import annotations

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import SILU, read_activation, read_decoder, refuse_windows
from quire.engine.models.decoder_config import DecoderConfig


def read_llama(config: ConfigReader) -> DecoderConfig:
    """Biases are optional."""
    refuse_windows(config)
    bias = config.flag("attention_bias", False)
    return read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        activation=read_activation(config, SILU),
    )
