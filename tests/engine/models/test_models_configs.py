"""Published configurations are read as intended; damaged or hostile ones are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from engine_checkpoints import MODELS

from quire.core.errors import ModelError, ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.layers.rope_frequencies import inverse_frequencies
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.registry import FAMILIES, family_of

Values = dict[str, Any]


def read(values: Values) -> DecoderConfig:
    return family_of(values, "config.json").read(ConfigReader(values, "config.json"))


def sizes(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int) -> Values:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 32000,
    }


def test_llama_2_and_3() -> None:
    old = read({"model_type": "llama", **sizes(32, 4096, 11008, 32, 32)})
    assert (old.max_positions, old.ropes[0].theta, old.head_dim) == (2048, 10000.0, 128)
    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    new = read(
        {
            "model_type": "llama",
            **sizes(16, 2048, 8192, 32, 8),
            "rope_scaling": scaling,
            "rope_theta": 500000.0,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        }
    )
    assert (new.ropes[0].kind, new.ropes[0].theta, new.ropes[0].factor) == ("llama3", 5e5, 32.0)
    assert new.max_positions == 131072
    assert new.tie_embeddings


@pytest.mark.parametrize(("window", "expected"), [(4096, 4096), (None, None)])
def test_mistral(window: int | None, expected: int | None) -> None:
    """Version 0.1 has windows, later ones say null."""
    values = {"model_type": "mistral", **sizes(32, 4096, 14336, 32, 8), "sliding_window": window}
    assert {layer.window for layer in read(values).layers} == {expected}


def test_qwen2_windows_are_off_unless_switched_on() -> None:
    values = {
        "model_type": "qwen2",
        **sizes(4, 896, 4864, 14, 2),
        "sliding_window": 32768,
        "use_sliding_window": False,
        "max_window_layers": 2,
    }
    assert {layer.window for layer in read(values).layers} == {None}
    on = read({**values, "use_sliding_window": True})
    assert [layer.window for layer in on.layers] == [None, None, 32768, 32768]


def test_yarn_reaches_beyond_max_position_embeddings() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    values = {
        "model_type": "qwen2",
        **sizes(4, 896, 4864, 14, 2),
        "max_position_embeddings": 32768,
    }
    assert read(values).max_positions == 32768
    assert read({**values, "rope_scaling": scaling}).max_positions == 131072


def test_qwen3_moe() -> None:
    model = read(
        {
            "model_type": "qwen3_moe",
            **sizes(48, 2048, 6144, 32, 4),
            "head_dim": 128,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    )
    assert model.experts is not None
    assert (model.experts.num_experts, model.experts.top_k) == (128, 8)
    assert model.experts.intermediate_size == 768
    assert all(layer.experts for layer in model.layers)
    assert model.attention.qk_norm == "head"


def test_gemma_2() -> None:
    model = read(
        {
            "model_type": "gemma2",
            **sizes(26, 2304, 9216, 8, 4),
            "head_dim": 256,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
        }
    )
    assert [layer.window for layer in model.layers[:3]] == [4096, None, 4096]
    assert (model.attention.softcap, model.logit_softcap) == (50.0, 30.0)
    assert model.attention.scale == 1 / 16
    assert model.embedding_multiplier == math.sqrt(2304)
    assert (model.tie_embeddings, model.norm.offset) == (True, 1.0)


def test_gemma_3_with_the_defaults_of_keys_that_its_file_omits() -> None:
    """The published file of the 4B model, which also contains a vision tower."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    values = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
    model = read({**values, "text_config": text, "vision_config": {}})
    assert [layer.window for layer in model.layers[:7]] == [1024] * 5 + [None, 1024]
    assert [layer.rope for layer in model.layers[:7]] == [1] * 5 + [0, 1]
    kinds = [(rope.kind, rope.theta, rope.factor) for rope in model.ropes]
    assert kinds == [("linear", 1e6, 8.0), ("default", 1e4, 1.0)]
    assert (model.num_heads, model.num_kv_heads, model.head_dim) == (8, 4, 256)
    assert (model.vocab_size, model.max_positions) == (262208, 131072)
    assert model.ignores("vision_tower.x")
    assert not model.ignores("language_model.model.x")


@pytest.mark.parametrize(
    ("ropes", "expected"),
    [
        ({"rope_theta": 2e6}, (2e6, 1e4)),
        ({"rope_theta": 2e6, "rope_local_base_freq": 5e3}, (2e6, 5e3)),
        ({"rope_parameters": {"full_attention": {"rope_theta": 2e6}}}, (2e6, 1e4)),
        ({"rope_theta": 3e6, "rope_parameters": {"sliding_attention": {}}}, (3e6, 1e4)),
    ],
)
def test_gemma_3_has_two_thetas(ropes: Values, expected: tuple[float, float]) -> None:
    values = {"model_type": "gemma3_text", **sizes(6, 1152, 6912, 4, 1), **ropes}
    assert tuple(rope.theta for rope in read(values).ropes) == expected


def test_phi_3_chooses_its_factors_by_the_served_length() -> None:
    short, long = [1.0 + i / 48 for i in range(48)], [2.0 + i for i in range(48)]
    model = read(
        {
            "model_type": "phi3",
            **sizes(32, 3072, 8192, 32, 32),
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "su", "short_factor": short, "long_factor": long},
            "sliding_window": 262144,
        }
    )
    plain = 1 / (10000.0 ** (torch.arange(0, 96, 2) / 96))
    for length, factors in [(4096, short), (4097, long), (131072, long)]:
        rope = model.for_length(length).ropes[0]
        wanted = plain / torch.tensor(factors)
        assert torch.allclose(inverse_frequencies(rope, 96), wanted)
    assert model.ropes[0].attention_factor == pytest.approx(
        math.sqrt(1 + math.log(32) / math.log(4096))
    )


def test_phi_4_mini_rotates_a_part_of_every_head() -> None:
    factors = [1.0] * 48
    model = read(
        {
            "model_type": "phi3",
            **sizes(32, 3072, 8192, 24, 8),
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 4096,
            "max_position_embeddings": 131072,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": factors,
                "long_factor": factors,
            },
        }
    )
    assert model.ropes[0].rotary_dim(model.head_dim) == 96


def test_gpt_oss() -> None:
    model = read(
        {
            "model_type": "gpt_oss",
            **sizes(24, 2880, 2880, 64, 8),
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "max_position_embeddings": 131072,
            "rope_theta": 150000,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "swiglu_limit": 7.0,
        }
    )
    assert [layer.window for layer in model.layers[:3]] == [128, None, 128]
    assert model.attention.sinks
    assert model.experts is not None
    assert (model.experts.scoring, model.experts.activation) == ("chosen", "clamped_swiglu")
    assert model.ropes[0].attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    assert model.max_positions == 131072


def test_granite() -> None:
    model = read(
        {
            "model_type": "granite",
            **sizes(40, 2048, 8192, 32, 8),
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        }
    )
    multipliers = (model.embedding_multiplier, model.residual_multiplier, model.logit_multiplier)
    assert (model.attention.scale, *multipliers) == (0.015625, 12.0, 0.22, 0.125)


def test_gemma_1_uses_the_tanh_form() -> None:
    model = read({"model_type": "gemma", **sizes(18, 2048, 16384, 8, 1), "hidden_act": "gelu"})
    assert model.mlp is not None
    assert (model.mlp.activation, model.head_dim, model.norm_placement) == ("gelu_tanh", 256, "pre")


def test_olmo_3_scales_the_rotation_of_full_attention_only() -> None:
    scaling = {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    model = read(
        {
            "model_type": "olmo3",
            **sizes(32, 4096, 11008, 32, 32),
            "rope_scaling": scaling,
            "rope_theta": 500000,
            "sliding_window": 4096,
            "max_position_embeddings": 65536,
        }
    )
    assert [layer.window for layer in model.layers[:4]] == [4096] * 3 + [None]
    assert [(rope.kind, rope.theta) for rope in model.ropes] == [("yarn", 5e5), ("default", 5e5)]


def test_mistral_small_keeps_its_output_projection_beside_the_decoder() -> None:
    text = {"model_type": "mistral", **sizes(40, 5120, 32768, 32, 8), "sliding_window": None}
    model = read({"model_type": "mistral3", "text_config": text})
    assert (model.prefix, model.output_name) == (
        "language_model.model",
        "language_model.lm_head.weight",
    )


MOE: Values = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}

REFUSED: list[tuple[str, str, Values, type[ModelError], str]] = [
    ("kinds short", "gemma2", {"layer_types": ["full_attention"]}, ModelFormatError, "each of 2"),
    ("kinds text", "gemma2", {"layer_types": "full"}, ModelFormatError, "layer_types"),
    ("kind unknown", "gemma2", {"layer_types": ["chunked_attention"] * 2}, UnsupportedModel,
     "chunked_attention"),
    ("kind odd", "gemma2", {"layer_types": [["x"]] * 2}, UnsupportedModel, "layers of type"),
    ("kinds without window", "mistral",
     {"layer_types": ["sliding_attention"] * 2, "sliding_window": None},
     ModelFormatError, "no sliding_window"),
    ("window zero", "mistral", {"sliding_window": 0}, ModelFormatError, "sliding_window"),
    ("window huge", "mistral", {"sliding_window": 1 << 60}, ModelFormatError, "sliding_window"),
    ("window text", "phi3", {"sliding_window": "4096"}, ModelFormatError, "sliding_window"),
    ("window of OLMo", "olmo2", {"layer_types": ["sliding_attention"] * 2}, UnsupportedModel,
     "sliding-window"),
    ("window of Granite", "granite", {"use_sliding_window": True}, UnsupportedModel, "sliding"),
    ("activation", "gemma2", {"hidden_activation": "relu"}, UnsupportedModel, "relu.*gelu_pyt"),
    ("both directions", "gemma3_text", {"use_bidirectional_attention": True}, UnsupportedModel,
     "both directions"),
    ("soft-cap zero", "gemma2", {"attn_logit_softcapping": 0}, ModelFormatError, "softcapping"),
    ("soft-cap NaN", "gemma2", {"final_logit_softcapping": math.nan}, ModelFormatError, "softc"),
    ("scale zero", "gemma2", {"query_pre_attn_scalar": 0}, ModelFormatError, "query_pre_attn"),
    ("pattern zero", "gemma3_text", {"sliding_window_pattern": 0}, ModelFormatError, "pattern"),
    ("ropes list", "gemma3_text", {"rope_parameters": [1]}, ModelFormatError, "rope_parameters"),
    ("no text part", "gemma3", {}, ModelFormatError, "no text_config"),
    ("text part list", "gemma3", {"text_config": []}, ModelFormatError, "text_config"),
    ("no experts", "mixtral", {}, ModelFormatError, "num_local_experts"),
    ("many experts", "mixtral", {"num_local_experts": 1 << 30}, ModelFormatError, "num_local"),
    ("too many of them", "mixtral", {"num_local_experts": 2, "num_experts_per_tok": 3},
     ModelFormatError, "num_experts_per_tok"),
    ("experts huge", "qwen3_moe", {**MOE, "moe_intermediate_size": 1 << 40}, ModelFormatError,
     "moe_intermediate_size"),
    ("dense text", "qwen3_moe", {**MOE, "mlp_only_layers": ["x"]},
     ModelFormatError, "mlp_only_layers"),
    ("step zero", "qwen3_moe", {**MOE, "decoder_sparse_step": 0},
     ModelFormatError, "decoder_sparse_step"),
    ("clamp", "gpt_oss", {"swiglu_limit": 5.0}, UnsupportedModel, "swiglu_limit 5"),
    ("no rope", "smollm3", {"no_rope_layers": [1]}, ModelFormatError, "no_rope_layers"),
    ("no rope odd", "smollm3", {"no_rope_layers": [2, 0]}, ModelFormatError, "no_rope_layers"),
    ("multiplier", "granite", {"logits_scaling": 0}, ModelFormatError, "logits_scaling"),
    ("no base", "llama", {"rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_theta": 1.0},
     ModelFormatError, "rope_theta = 1.*above 1"),
    ("fraction", "phi3", {"partial_rotary_factor": 1.5}, ModelFormatError, "partial_rotary"),
    ("odd fraction", "phi3", {"partial_rotary_factor": 0.2}, ModelFormatError, "rotates 3 of 16"),
    ("few factors", "phi3",
     {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
     ModelFormatError, "short_factor.*list of 8 numbers"),
    ("factor zero", "phi3",
     {"rope_scaling": {"type": "longrope", "short_factor": [0.0] * 8, "long_factor": [1.0] * 8}},
     ModelFormatError, "short_factor"),
    ("factors absent", "phi3", {"rope_scaling": {"type": "su"}}, ModelFormatError, "short_factor"),
    ("recurrent layers", "granitemoehybrid", {"layer_types": ["mamba", "attention"]},
     UnsupportedModel, "mamba.*no H"),
    ("kinds absent", "granitemoehybrid", {"num_local_experts": 0}, UnsupportedModel, "None.*no H"),
    ("shared and single experts", "granitemoehybrid", {"layer_types": ["attention"] * 2},
     UnsupportedModel, "experts beside"),
    ("norm", "granitemoehybrid",
     {"layer_types": ["attention"] * 2, "normalization_function": "layernorm"},
     UnsupportedModel, "layernorm"),
    ("pattern", "exaone4", {"sliding_window_pattern": "LxG"}, ModelFormatError, "letters L and G"),
    ("window of GLM", "glm4", {"use_sliding_window": True}, UnsupportedModel, "sliding"),
    ("other architecture", "gemma2", {"architectures": ["Gemma2ForX"]}, UnsupportedModel, "Built"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "changes", "error", "part"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_bad_values_are_named(
    model_type: str, changes: Values, error: type[ModelError], part: str
) -> None:
    values = {"model_type": model_type, **sizes(2, 32, 48, 2, 1), **changes}
    with pytest.raises(error, match=part) as raised:
        read(values)
    assert type(raised.value) is error


def test_layers_with_a_window_alone_rotate_in_exaone_4() -> None:
    values = {"model_type": "exaone4", **sizes(5, 64, 96, 4, 2)}
    numbered = read({**values, "sliding_window_pattern": 2})
    lettered = read({**values, "sliding_window_pattern": "LG"})
    for model in (numbered, lettered):
        assert [layer.window for layer in model.layers[:4]] == [4096, None, 4096, None]
        assert [model.ropes[layer.rope].kind for layer in model.layers[:2]] == ["default", "none"]
    assert (numbered.layers[4].window, lettered.layers[4].window) == (4096, None)
    full = read({**values, "sliding_window": None, "sliding_window_pattern": None})
    assert {(layer.window, full.ropes[layer.rope].kind) for layer in full.layers} == {
        (None, "default")
    }


def test_granite_4_is_as_wide_as_its_shared_mlp() -> None:
    values = {
        **{"model_type": "granitemoehybrid", **sizes(2, 64, 8192, 4, 2), "num_local_experts": 0},
        **{"layer_types": ["attention"] * 2, "shared_intermediate_size": 96},
    }
    model = read(values)
    assert model.mlp is not None
    assert (model.mlp.intermediate_size, model.ropes[0].kind) == (96, "none")
    assert read({**values, "position_embedding_type": "rope"}).ropes[0].kind == "default"


def test_glm_rotates_half_of_every_head_unless_told() -> None:
    values = {"model_type": "glm4", **sizes(2, 64, 96, 4, 2)}
    model = read(values)
    assert (model.head_dim, model.attention.rotated_pairs) == (128, 32)
    assert model.attention.qkv_bias
    assert read({**values, "partial_rotary_factor": 1.0}).attention.rotated_pairs == 64


def test_every_family_is_in_the_table_of_models() -> None:
    tested = {recipe.config.model_type for recipe in MODELS.values()}
    assert tested >= FAMILIES.keys() - {"gemma3", "llava", "mistral3"}  # these wrap others


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan")])
def test_a_number_that_no_model_has_is_refused(value: float) -> None:
    reader = ConfigReader({"rms_norm_eps": value}, "config.json")
    with pytest.raises(ModelFormatError, match="rms_norm_eps"):
        reader.number("rms_norm_eps", low=0.0, high=1.0)
