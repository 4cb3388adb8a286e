"""Mistral: Llama's decoder with a window in every layer. Ministral: a window in some layers.
Ministral 3: queries are scaled by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.rope_config import MAX_POSITIONS, rope_section
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    read_layers,
    read_window,
    text_part,
)
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig

_MINISTRAL_3 = {
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
"""Defaults for configurations that leave these out."""


def read_mistral(config: ConfigReader) -> DecoderConfig:
    """Every layer has the window if there is one (version 0.1), unless ``layer_types`` differs."""
    plain = read_decoder(config, activation=read_activation(config, SILU))
    window = read_window(config, 4096)
    layers = read_layers(config, plain.num_layers, window, lambda layer: True)
    return replace(plain, layers=layers)


def read_ministral3(config: ConfigReader) -> DecoderConfig:
    """Every layer has the window if there is one. Queries get Llama 4's scale."""
    defaults = dict(_MINISTRAL_3)
    if config.has("rope_scaling"):
        del defaults["rope_parameters"]
    config = config.over(defaults)
    activation = read_activation(config, SILU)
    plain = read_decoder(config, activation=activation, norm_eps=1e-5, theta=1e6)
    rope = rope_section(config)
    assert rope is not None, "the defaults have one"
    scaled = replace(
        plain.ropes[0],
        query_beta=rope.number("llama_4_scaling_beta", low=0.0, high=100.0),
        original_length=rope.integer("original_max_position_embeddings", MAX_POSITIONS),
    )
    layer = LayerConfig(window=read_window(config))
    return replace(plain, layers=(layer,) * plain.num_layers, ropes=(scaled,))


_TEXT_PARTS: Mapping[str, Callable[[ConfigReader], DecoderConfig]] = {
    "mistral": read_mistral,
    "ministral": read_mistral,
    "ministral3": read_ministral3,
}


def read_mistral_text_part(config: ConfigReader) -> DecoderConfig:
    """Mistral Small 3.1 and later and Ministral 3, which also take images."""
    return text_part(config, _read_text)


def _read_text(text: ConfigReader) -> DecoderConfig:
    kind = text.text("model_type", "mistral")
    if kind not in _TEXT_PARTS:
        raise UnsupportedModel(
            f"{text.where} is a {kind[:80]!r}; served inside mistral3 are {', '.join(_TEXT_PARTS)}"
        )
    return _TEXT_PARTS[kind](text)
