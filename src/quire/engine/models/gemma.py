"""Gemma: Llama's decoder with norm weights stored minus one, scaled embeddings and a GELU."""

from __future__ import annotations

import math
from dataclasses import replace

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.norm import QKNormKind
from quire.engine.models.common_fields import GELU_TANH, read_activation, read_decoder
from quire.engine.models.decoder_config import DecoderConfig


def read_gemma(config: ConfigReader) -> DecoderConfig:
    """Read Gemma's fields. The published files name ``gelu``, but the models use its tanh form."""
    config = config.over({"head_dim": 256, "max_position_embeddings": 8192})
    return read_any_gemma(config, "hidden_activation" if config.has("hidden_activation") else None)


def read_any_gemma(
    config: ConfigReader,
    activation_field: str | None = "hidden_activation",
    *,
    qk_norm: QKNormKind | None = None,
) -> DecoderConfig:
    """The fields that all versions share. Norm weights are stored as deviations from one."""
    if config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel(
            f"{config.where} asks for attention in both directions (an embedding model); served "
            "are models that generate"
        )
    if activation_field:
        config.set_aside("hidden_act")
    activation = (
        read_activation(config, GELU_TANH, activation_field)
        if activation_field
        else read_activation(config, {**GELU_TANH, "gelu": "gelu_tanh"})
    )
    bias = config.flag("attention_bias", False)
    plain = read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        activation=activation,
        tie_embeddings=True,
        theta=10000.0,
    )
    return replace(
        plain,
        norm=replace(plain.norm, offset=1.0),
        embedding_multiplier=math.sqrt(plain.hidden_size),
    )
