"""InternLM 3: Llama's decoder with other names for its biases."""

from __future__ import annotations

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import SILU, read_activation, read_decoder, refuse_windows
from quire.engine.models.decoder_config import DecoderConfig


def read_internlm3(config: ConfigReader) -> DecoderConfig:
    """Read InternLM3's fields. ``bias`` is that of the output projection and of the MLP."""
    refuse_windows(config)
    bias = config.flag("bias", config.flag("mlp_bias", False))
    return read_decoder(
        config.over({"head_dim": 128}),
        qkv_bias=config.flag("qkv_bias", config.flag("attention_bias", False)),
        output_bias=bias,
        mlp_bias=bias,
        activation=read_activation(config, SILU),
        norm_eps=1e-5,
    )
