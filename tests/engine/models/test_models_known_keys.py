"""No key of a configuration is accepted unread: it is harmless, refused, or named in a warning."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_checkpoints import BASE, MODELS, VOCAB_SIZE
from engine_driver import Driver, Row
from hypothesis import given, settings
from hypothesis import strategies as st
from published_configs import PUBLISHED
from transformers import Mistral3Config, Mistral3ForConditionalGeneration

from quire.core.config import EngineConfig
from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.core.ids import ModelId
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.engine import Engine
from quire.engine.models.registry import family_of
from quire.engine.quantization.registry import scheme_of
from quire.engine.vision.config import read_vision

Values = dict[str, Any]


def warnings_of(values: Values) -> list[str]:
    """The warnings of loading a configuration, without its weights."""
    family = family_of(values, "config.json")
    reader = ConfigReader(values, "config.json")
    shape = family.read(reader)
    if family.sees_images:
        read_vision(reader, output_size=shape.hidden_size, vocab_size=shape.vocab_size)
    scheme_of(reader)
    return account(reader, family.keys)


def saved(name: str) -> Values:
    """The configuration of a recipe as transformers writes it, defaults included."""
    recipe = MODELS[name]
    config = recipe.config(**{**BASE, **recipe.changes})
    values: Values = json.loads(config.to_json_string(use_diff=False))
    del values["architectures"]
    return values


@pytest.mark.parametrize("name", MODELS)
def test_configurations_written_by_transformers_give_no_warning(name: str) -> None:
    assert warnings_of(saved(name)) == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_give_no_warning(name: str) -> None:
    assert warnings_of(PUBLISHED[name]) == []


QUANTISED: dict[str, Values] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False},
                "input_activations": {"num_bits": 8, "type": "int", "dynamic": True},
            }
        },
    },
}

PLACES: dict[str, tuple[Callable[[], Values], tuple[str, ...]]] = {
    **{name: (lambda name=name: saved(name), ()) for name in ("llama", "gemma3", "gpt-oss")},
    "rope": (lambda: saved("llama-rope-yarn"), ("rope_parameters",)),
    "rope of windows": (lambda: saved("gemma3"), ("rope_parameters", "sliding_attention")),
    "text part": (lambda: PUBLISHED["gemma-3-4b"], ("text_config",)),
    "around a text part": (lambda: PUBLISHED["gemma-3-4b"], ()),
    "tower": (lambda: PUBLISHED["llava-1.5-7b"], ("vision_config",)),
    **{
        f"quantisation {name}": (
            lambda section=section: {**saved("llama"), "quantization_config": section},
            ("quantization_config",),
        )
        for name, section in QUANTISED.items()
    },
    "weights of a group": (
        lambda: {**saved("llama"), "quantization_config": QUANTISED["compressed"]},
        ("quantization_config", "config_groups", "group_0", "weights"),
    ),
}
"""A valid configuration, and the object in it to which a key is added."""

NAMES = st.one_of(
    st.text(min_size=1, max_size=20),
    st.from_regex(r"[a-z]{2,8}(_[a-z0-9]{1,8}){0,3}", fullmatch=True),
    st.sampled_from(["no_rope_every", "logit_bias", "kv_lora_rank", "query_beta", "window"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=60, deadline=None)
@given(name=NAMES, value=JSON)
def test_an_unknown_key_never_loads_in_silence(place: str, name: str, value: Any) -> None:
    make, path = PLACES[place]
    values = json.loads(json.dumps(make()))
    assert warnings_of(values) == [], "the configuration is valid without it"
    inner = values
    for key in path:
        inner = inner[key]
    if name in inner or _is_known(values, path, name):
        return
    inner[name] = value
    (warning,) = warnings_of(values)
    assert name in warning


def _is_known(values: Values, path: tuple[str, ...], name: str) -> bool:
    """Whether the scope or the reader of that object knows ``name``, so that it is not an unknown
    key."""
    family = family_of(values, "config.json")
    reader = ConfigReader(values, "config.json")
    family.read(reader)
    if family.sees_images:
        read_vision(reader, output_size=64, vocab_size=100_000)
    scheme_of(reader)
    scope = family.keys
    for key in path:
        section = reader.section(key)
        assert section is not None
        reader, scope = section, scope.sections.get(key) or scope.sections["*"]
    return name in reader.keys.names or name in scope.refused or scope.is_harmless(name)


GROUP: Values = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}


def compressed(**changes: Any) -> Values:
    section = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": GROUP},
        **changes,
    }
    return {"quantization_config": section}


def group(**changes: Any) -> Values:
    return compressed(config_groups={"group_0": {**GROUP, **changes}})


REFUSED: list[tuple[str, Values, str]] = [
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0.*clipped"),
    ("llama", {"is_causal": False}, "is_causal = False.*both directions"),
    ("qwen3", {"is_causal": False}, "both directions"),
    ("qwen2", {"use_bidirectional_attention": True}, "both directions"),
    ("llama", {"per_layer_config": {"0": {"head_dim": 4}}}, "per_layer_config"),
    ("llama", {"attention_chunk_size": 64}, "within chunks"),
    ("llama", {"sliding_window": 64}, "sliding_window = 64"),
    ("gemma", {"sliding_window": 64}, "sliding_window = 64"),
    ("phi3", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ("llama", {"transformers_weights": "other.safetensors"}, "another name"),
    ("llama", {"add_cross_attention": True}, "attention to an encoder"),
    ("llama", {"final_logit_softcapping": 30.0}, "soft-cap"),
    ("mistral", {"rope_parameters": {"rope_theta": 1e4, "llama_4_scaling_beta": 0.1}}, "scaled by"),
    ("llama", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 1]}}, "several axes"),
    ("llama", compressed(transform_config={"config_groups": {"R1": {}}}), "transform_config"),
    ("llama", compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
    ("llama", group(input_activations={"num_bits": 4, "type": "float"}), "activations of 4 bits"),
    ("llama", group(output_activations={"num_bits": 8}), "output_activations"),
    ("llama", group(weights={"num_bits": 8, "type": "int"}), "type 'int'"),
    ("llama", group(weights={"num_bits": 3, "type": "float"}), "3 bits"),
    ("llama", group(weights={"num_bits": 8, "type": "float", "dynamic": True}), "weights of 8"),
    ("llama", {"quantization_config": {**QUANTISED["gptq"], "dynamic": {"+:x": {}}}}, "dynamic"),
    (
        "llama",
        {"quantization_config": {**QUANTISED["gptq"], "is_marlin_format": True}},
        "is_marlin_format",
    ),
]


@pytest.mark.parametrize(("name", "changes", "part"), REFUSED)
def test_keys_that_change_results_are_refused(name: str, changes: Values, part: str) -> None:
    with pytest.raises(UnsupportedModel, match=part):
        warnings_of({**saved(name), **changes})


CONTRADICTIONS: list[tuple[str, Values, str]] = [
    (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "rope_parameters and rope_scaling, and they differ",
    ),
    ("gemma3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "keep rope_parameters"),
    (
        "gemma3",
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
        "describes one rotation",
    ),
    (
        "llama-rope-yarn",
        {"original_max_position_embeddings": 64},
        "original_max_position_embeddings = 64, and 32",
    ),
    ("llama", group(weights={"type": "float", "block_structure": [0, 128]}), "block_structure"),
    (
        "llama",
        compressed(
            config_groups={
                "a": {"weights": {"type": "float", "block_structure": [64, 64]}},
                "b": {"weights": {"type": "float", "block_structure": "128x128"}},
            }
        ),
        "different block_structure",
    ),
]


@pytest.mark.parametrize(("name", "changes", "part"), CONTRADICTIONS)
def test_contradictions_are_refused(name: str, changes: Values, part: str) -> None:
    with pytest.raises(ModelFormatError, match=part):
        warnings_of({**saved(name), **changes})


@pytest.mark.parametrize(
    ("model", "part"), [("mistral3", "'llama'.*mistral3"), ("gemma3", "'llama'.*gemma3")]
)
def test_a_text_part_of_another_family_is_refused(model: str, part: str) -> None:
    with pytest.raises(UnsupportedModel, match=part):
        warnings_of({"model_type": model, "text_config": saved("llama")})


def test_a_windows_switch_that_is_off_takes_its_size_along() -> None:
    assert warnings_of({**saved("llama"), "sliding_window": 64, "use_sliding_window": False}) == []


def start(path: Path) -> Engine:
    return Engine(
        EngineConfig(
            source=str(path),
            name=ModelId("m"),
            backend="torch",
            dtype="float32",
            num_blocks=8,
            host_cache_bytes=0,
            num_threads=1,
        )
    )


def test_an_unknown_key_is_named_when_the_engine_starts(
    checkpoint: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m"
    shutil.copytree(checkpoint("llama"), path)
    with caplog.at_level(logging.WARNING):
        start(path)
        assert "not known" not in caplog.text
        values = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**values, "logit_bias_scale": 2}))
        start(path)
    assert "logit_bias_scale = 2" in caplog.text


def test_queries_inside_mistral3_are_scaled_beyond_the_original_length(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    text = json.loads((checkpoint("ministral3") / "config.json").read_text())
    vision = {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
        "image_size": 28,
        "patch_size": 14,
    }
    torch.manual_seed(0)
    config = Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=0, tie_word_embeddings=False
    )
    config._attn_implementation = "eager"
    reference = Mistral3ForConditionalGeneration(config).eval()
    reference.save_pretrained(tmp_path)
    shutil.copy(checkpoint("ministral3") / "tokenizer.json", tmp_path)
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).tolist()
    assert len(tokens) > 4 * text["rope_parameters"]["original_max_position_embeddings"]
    with torch.inference_mode():
        wanted = reference(torch.tensor([tokens])).logits[0].double().log_softmax(-1).numpy()
    assert np.abs(Driver(start(tmp_path)).logprobs([Row(tokens)]) - wanted).max() <= 1e-4
