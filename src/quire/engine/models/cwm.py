"""CWM: Llama 3's decoder with a window in three of four layers."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_layers,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig

_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read_cwm(config: ConfigReader) -> DecoderConfig:
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        config = config.over({"rope_parameters": _ROPE})
    config = config.over({"head_dim": 128})
    plain = read_decoder(
        config,
        mlp_bias=config.flag("mlp_bias", False),
        activation=read_activation(config, SILU),
        norm_eps=1e-5,
        theta=1e6,
    )
    window = read_window(config, 8192)
    layers = read_layers(config, plain.num_layers, window, lambda layer: layer % 4 != 0)
    return replace(plain, layers=layers)
