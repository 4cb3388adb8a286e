"""Gemma 2: norms before and after, soft-caps, every other layer behind a window."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from quire.core.errors import UnsupportedModel
from quire.engine.config_reader import ConfigReader
from quire.engine.layers.norm import QKNormKind
from quire.engine.models.common_fields import (
    GELU_TANH,
    MAX_SIZE,
    read_activation,
    read_decoder,
    read_layers,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig


def read_gemma2(config: ConfigReader) -> DecoderConfig:
    gemma = read_gemma(config, lambda layer: layer % 2 == 0)
    softcap = read_softcap(config, "attn_logit_softcapping", 50.0)
    return replace(
        gemma,
        attention=replace(gemma.attention, softcap=softcap),
        logit_softcap=read_softcap(config, "final_logit_softcapping", 30.0),
    )


def read_gemma(
    config: ConfigReader,
    is_windowed: Callable[[int], bool],
    *,
    qk_norm: QKNormKind | None = None,
    theta: float = 10000.0,
) -> DecoderConfig:
    """What Gemma 2 and 3 have in common. Norm weights are stored as deviations from one."""
    if config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel(
            f"{config.where} asks for attention in both directions (an embedding model); served "
            "are models that generate"
        )
    bias = config.flag("attention_bias", False)
    plain = read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        activation=read_activation(config, GELU_TANH, "hidden_activation"),
        tie_embeddings=True,
        theta=theta,
    )
    divisor = config.number("query_pre_attn_scalar", low=1e-3, high=MAX_SIZE, default=256)
    layers = read_layers(config, plain.num_layers, read_window(config, 4096), is_windowed)
    return replace(
        plain,
        attention=replace(plain.attention, scale=divisor**-0.5),
        layers=layers,
        norm=replace(plain.norm, offset=1.0),
        norm_placement="sandwich",
        embedding_multiplier=math.sqrt(plain.hidden_size),
    )


def read_softcap(config: ConfigReader, name: str, default: float | None) -> float | None:
    """None where the configuration says null."""
    if name in config.values and not config.has(name):
        return None
    if default is None and not config.has(name):
        return None
    return config.number(name, low=1e-3, high=1e6, default=default)
