"""SmolLM3: Llama's decoder without rotation in every fourth layer."""

from __future__ import annotations

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


def read_smollm3(config: ConfigReader) -> DecoderConfig:
    """Windows, which published checkpoints do not use, apply to the layers without rotation."""
    bias = config.flag("attention_bias", False)
    plain = read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        activation=read_activation(config, SILU),
        tie_embeddings=True,
    )
    rotates = _read_rotating(config, plain.num_layers)
    if not config.flag("use_sliding_window", False):
        config.set_aside("sliding_window", "layer_types", "max_window_layers")
        config = config.without("sliding_window", "layer_types")
    layers = read_layers(
        config, plain.num_layers, read_window(config), lambda layer: not rotates[layer]
    )
    return replace(
        plain,
        layers=tuple(
            replace(layer, rope=0 if rotated else 1)
            for layer, rotated in zip(layers, rotates, strict=True)
        ),
        ropes=(*plain.ropes, RopeConfig(theta=1.0, kind="none")),
    )


def _read_rotating(config: ConfigReader, num_layers: int) -> list[bool]:
    """Whether each layer rotates. ``no_rope_layers`` is 1 where it does, despite its name."""
    listed = config.raw("no_rope_layers")
    if listed is None:
        interval = config.integer("no_rope_layer_interval", 1 << 20, default=4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    config.set_aside("no_rope_layer_interval")
    if (
        not isinstance(listed, list)
        or len(listed) != num_layers
        or set(map(str, listed))
        - {
            "0",
            "1",
        }
    ):
        raise ModelFormatError(
            f"{config.where} has no_rope_layers = {str(listed)[:80]!r}; it must be a list of 0 or "
            f"1 for each of {num_layers} layers"
        )
    return [one == 1 for one in listed]
