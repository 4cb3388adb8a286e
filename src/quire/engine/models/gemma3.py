"""Gemma 3 (text): normed heads, and five local layers with a rotation of their own to one global.

Of the checkpoints that see images too, the text part is served.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import ModelFormatError
from quire.engine.config_reader import ConfigReader
from quire.engine.layers.rope_frequencies import RopeConfig, read_rope
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.gemma2 import read_gemma, read_softcap

_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4
_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
"""Published configurations leave these out."""


def read_gemma3(config: ConfigReader) -> DecoderConfig:
    config = config.over(_DEFAULTS)
    pattern = config.integer("sliding_window_pattern", 1 << 20, default=6)
    gemma = read_gemma(
        config.without("rope_parameters", "rope_scaling"),
        lambda layer: (layer + 1) % pattern != 0,
        qk_norm="head",
    )
    return replace(
        gemma,
        layers=tuple(
            replace(layer, rope=0 if layer.window is None else 1) for layer in gemma.layers
        ),
        ropes=_read_ropes(config, gemma),
        logit_softcap=read_softcap(config, "final_logit_softcapping", None),
    )


def read_gemma3_text_part(config: ConfigReader) -> DecoderConfig:
    """The decoder of a checkpoint with a vision tower."""
    text = config.section("text_config")
    if text is None:
        raise ModelFormatError(
            f"{config.where} has no text_config: the file is damaged; download it again"
        )
    return replace(
        read_gemma3(text),
        prefix="language_model.model",
        other_parts=("vision_tower.", "multi_modal_projector."),
    )


def _read_ropes(config: ConfigReader, gemma: DecoderConfig) -> tuple[RopeConfig, RopeConfig]:
    """Those of global and of local layers, in either spelling."""
    size, longest = gemma.head_dim, gemma.max_positions
    both = config.section("rope_parameters")
    if both is not None:
        empty = ConfigReader({}, both.where)
        full = both.section("full_attention") or empty
        local = both.section("sliding_attention") or empty
        return (
            read_rope(config, longest, size, scaling=full, default_theta=_GLOBAL_THETA),
            read_rope(config, longest, size, scaling=local, default_theta=_LOCAL_THETA),
        )
    theta = config.number("rope_local_base_freq", low=1.0, high=1e12, default=_LOCAL_THETA)
    return (
        read_rope(config, longest, size, default_theta=_GLOBAL_THETA),
        RopeConfig(theta),
    )
