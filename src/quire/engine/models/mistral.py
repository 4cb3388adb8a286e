"""Mistral and Ministral (8B, 2024): Llama's decoder, some or all layers behind a window."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.config_reader import ConfigReader
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_layers,
    read_window,
    text_part,
)
from quire.engine.models.decoder_config import DecoderConfig


def read_mistral(config: ConfigReader) -> DecoderConfig:
    """Every layer has the window if there is one (version 0.1), unless ``layer_types`` differs."""
    plain = read_decoder(config, activation=read_activation(config, SILU))
    window = read_window(config, 4096)
    layers = read_layers(config, plain.num_layers, window, lambda layer: True)
    return replace(plain, layers=layers)


def read_mistral_text_part(config: ConfigReader) -> DecoderConfig:
    """Mistral Small 3.1 and later, which see images too."""
    return text_part(config, read_mistral)
