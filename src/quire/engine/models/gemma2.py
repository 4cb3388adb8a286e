"""Gemma 2: norms before and after, soft-caps, a window in every other layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import MAX_SIZE, read_layers, read_window
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.gemma import read_any_gemma


def read_gemma2(config: ConfigReader) -> DecoderConfig:
    gemma = between_norms(config, read_any_gemma(config), lambda layer: layer % 2 == 0)
    softcap = read_softcap(config, "attn_logit_softcapping", 50.0)
    return replace(
        gemma,
        attention=replace(gemma.attention, softcap=softcap),
        logit_softcap=read_softcap(config, "final_logit_softcapping", 30.0),
    )


def between_norms(
    config: ConfigReader, gemma: DecoderConfig, is_windowed: Callable[[int], bool]
) -> DecoderConfig:
    """The additions of Gemma 2 and 3: norms on both sides, windows, and a query scale of their
    own."""
    divisor = config.number("query_pre_attn_scalar", low=1e-3, high=MAX_SIZE, default=256)
    return replace(
        gemma,
        attention=replace(gemma.attention, scale=divisor**-0.5),
        layers=read_layers(config, gemma.num_layers, read_window(config, 4096), is_windowed),
        norm_placement="sandwich",
    )


def read_softcap(config: ConfigReader, name: str, default: float | None) -> float | None:
    """The soft-cap; None where the configuration says null."""
    if not config.has(name) and (config.is_null(name) or default is None):
        return None
    return config.number(name, low=1e-3, high=1e6, default=default)
