"""Mistral and Ministral: Llama's decoder, all or some of its layers behind a sliding window."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.config_reader import ConfigReader
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_layers,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig


def read_mistral(config: ConfigReader) -> DecoderConfig:
    """Every layer has the window if there is one (version 0.1), unless ``layer_types`` differs."""
    plain = read_decoder(config, activation=read_activation(config, SILU))
    window = read_window(config)
    layers = read_layers(config, plain.num_layers, window, lambda layer: True)
    return replace(plain, layers=layers)
