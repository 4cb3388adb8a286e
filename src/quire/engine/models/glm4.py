"""GLM-4: half of every head is rotated, in pairs of neighbouring elements. The models of 2025 add
norms after attention and MLP."""

from __future__ import annotations

from dataclasses import replace

from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.models.common_fields import (
    SILU,
    read_activation,
    read_decoder,
    refuse_windows,
    with_rotated_pairs,
)
from quire.engine.models.decoder_config import DecoderConfig

_DEFAULTS = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 131_072,
}
_NORM_NAMES = (
    "input_layernorm",
    "post_self_attn_layernorm",
    "post_attention_layernorm",
    "post_mlp_layernorm",
)


def read_glm(config: ConfigReader) -> DecoderConfig:
    """GLM-4-9B in the form of transformers."""
    refuse_windows(config)
    config = config.over(_DEFAULTS)
    plain = read_decoder(
        config,
        qkv_bias=config.flag("attention_bias", True),
        activation=read_activation(config, SILU),
        norm_eps=1.5625e-7,
    )
    assert plain.mlp is not None
    return with_rotated_pairs(replace(plain, mlp=replace(plain.mlp, storage="fused")))


def read_glm4(config: ConfigReader) -> DecoderConfig:
    """GLM-4-9B-0414, GLM-4-32B-0414, GLM-Z1."""
    return replace(read_glm(config), norm_placement="sandwich", norm_names=_NORM_NAMES)
