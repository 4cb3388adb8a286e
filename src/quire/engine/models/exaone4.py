"""EXAONE 4: norms after attention and MLP, normalised heads, windows in most layers; where some
layers have a window, the others do not rotate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.core.errors import ModelFormatError
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.rope_config import RopeConfig
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_layers,
    read_window,
)
from quire.engine.models.decoder_config import DecoderConfig


def read_exaone4(config: ConfigReader) -> DecoderConfig:
    plain = read_decoder(
        config, qk_norm="head", activation=read_activation(config, SILU), norm_eps=1e-5
    )
    plain = replace(plain, norm_placement="post")
    window = read_window(config, 4096)
    if window is None:
        config.set_aside("layer_types", "sliding_window_pattern")
        return plain
    layers = read_layers(config, plain.num_layers, window, _pattern(config, plain.num_layers))
    return replace(
        plain,
        layers=tuple(replace(one, rope=0 if one.window is not None else 1) for one in layers),
        ropes=(*plain.ropes, RopeConfig(theta=1.0, kind="none")),
    )


def _pattern(config: ConfigReader, num_layers: int) -> Callable[[int], bool]:
    """Whether a layer has the window, if ``layer_types`` does not state it: a number n leaves it
    out of each n-th layer, ``LLLG`` out of those with G and the last one."""
    pattern = config.raw("sliding_window_pattern")
    if not isinstance(pattern, str):
        step = config.integer("sliding_window_pattern", 1 << 20, default=4)
        return lambda layer: (layer + 1) % step != 0
    if not pattern or set(pattern) - {"L", "G"}:
        raise ModelFormatError(
            f"{config.where} has sliding_window_pattern = {pattern[:80]!r}; it must be a number, "
            "or letters L and G"
        )
    return lambda layer: layer < num_layers - 1 and pattern[layer % len(pattern)] == "L"
