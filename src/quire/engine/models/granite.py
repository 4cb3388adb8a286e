"""Granite 3 and 4: Llama's decoder with four multipliers, dense or with experts.

Of Granite 4 the models without recurrent layers are served.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.experts import ExpertsConfig
from quire.engine.layers.rope_config import RopeConfig
from quire.engine.models.common_fields import (
    MAX_SIZE,
    SILU,
    read_activation,
    read_decoder,
    read_num_experts,
    refuse_windows,
)
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig


def read_granite(config: ConfigReader) -> DecoderConfig:
    refuse_windows(config)
    return _read(config, mlp_bias=config.flag("mlp_bias", False))


def read_granite_moe(config: ConfigReader) -> DecoderConfig:
    """Granite 3 with experts in every layer."""
    refuse_windows(config)
    plain = _read(config)
    assert plain.mlp is not None
    num_experts, top_k = read_num_experts(config, "num_local_experts", default_top_k=2)
    experts = ExpertsConfig(
        num_experts,
        top_k,
        plain.mlp.intermediate_size,
        plain.mlp.activation,
        scoring="chosen",
        storage="granite",
    )
    layers = (LayerConfig(experts=True),) * plain.num_layers
    return replace(plain, layers=layers, mlp=None, experts=experts)


def read_granite_hybrid(config: ConfigReader) -> DecoderConfig:
    """Granite 4 with attention in every layer and no experts: the names without an "H"."""
    _refuse_recurrent_layers(config)
    if config.integer("num_local_experts", 1 << 16, low=0, default=8):
        raise UnsupportedModel(
            f"{config.where} has experts beside an MLP in every layer, which are not served: use "
            "a dense Granite 4 (micro, 1B, 350M)"
        )
    plain = _read(config.over({"intermediate_size": 1}))
    config.set_aside("intermediate_size", "num_experts_per_tok")
    width = config.integer("shared_intermediate_size", MAX_SIZE, default=1024)
    assert plain.mlp is not None
    rotates = config.text("position_embedding_type", "nope") == "rope"
    return replace(
        plain,
        mlp=replace(plain.mlp, intermediate_size=width, storage="granite"),
        ropes=plain.ropes if rotates else (RopeConfig(theta=1.0, kind="none"),),
    )


def _refuse_recurrent_layers(config: ConfigReader) -> None:
    kinds = config.raw("layer_types") or config.raw("layers_block_type")
    served = {"attention", "full_attention"}
    if not isinstance(kinds, list) or {str(kind) for kind in kinds} - served:
        raise UnsupportedModel(
            f"{config.where} has layer_types = {str(kinds)[:80]!r}; served are models with "
            "attention in every layer: use a Granite 4 whose name has no H (micro, 1B, 350M)"
        )
    if config.text("normalization_function", "rmsnorm") != "rmsnorm":
        raise UnsupportedModel(
            f"{config.where} has normalization_function = "
            f"{str(config.raw('normalization_function'))[:80]!r}; served is rmsnorm"
        )
    recurrent = [name for name in config.values if name.startswith(("mamba_", "time_step_"))]
    config.set_aside("init_method", *recurrent)


def _read(config: ConfigReader, *, mlp_bias: bool = False) -> DecoderConfig:
    bias = config.flag("attention_bias", False)
    plain = read_decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=mlp_bias,
        activation=read_activation(config, SILU),
    )
    return replace(
        plain,
        attention=replace(plain.attention, scale=_multiplier(config, "attention_multiplier")),
        embedding_multiplier=_multiplier(config, "embedding_multiplier"),
        residual_multiplier=_multiplier(config, "residual_multiplier"),
        logit_multiplier=1 / _multiplier(config, "logits_scaling"),
    )


def _multiplier(config: ConfigReader, name: str) -> float:
    return config.number(name, low=1e-6, high=1e6, default=1.0)
