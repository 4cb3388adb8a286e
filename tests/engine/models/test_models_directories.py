"""Whole directories: unused code, lengths, text parts, the engine's description."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_checkpoints import VOCAB_SIZE
from engine_driver import Driver, Row
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, UnsupportedModel
from quire.core.ids import ModelId
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.engine import Engine
from quire.engine.loading import load_model
from quire.engine.models.decoder import Decoder


def write_config(path: Path, **changes: Any) -> None:
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**values, **changes}))


def start(path: Path, **changes: Any) -> Engine:
    settings: dict[str, Any] = {
        "backend": "torch",
        "dtype": "float32",
        "num_blocks": 8,
        "host_cache_bytes": 0,
        "num_threads": 1,
        **changes,
    }
    return Engine(EngineConfig(source=str(path), name=ModelId("m"), **settings))


@pytest.fixture
def copy(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        shutil.copytree(checkpoint(name), tmp_path / name)
        return tmp_path / name

    return make


def test_code_with_the_names_of_served_classes_is_ignored(copy: Callable[[str], Path]) -> None:
    path = copy("phi3")
    published = {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        "AutoTokenizer": "someone/tokenizer",
    }
    write_config(path, auto_map=published)
    assert start(path).info.family == "phi3"
    for other in [
        {**published, "AutoModelForCausalLM": "modeling.MyPhiForCausalLM"},
        {**published, "AutoModel": 7},
        ["Phi3ForCausalLM"],
    ]:
        write_config(path, auto_map=other)
        with pytest.raises(UnsupportedModel, match="never runs code"):
            ModelDirectory(path).read_config()


def test_the_length_of_dynamic_rotations_is_asked_for(copy: Callable[[str], Path]) -> None:
    path = copy("llama-rope-dynamic")
    assert start(path).info.max_model_len == 16
    assert start(path, max_model_len=64).info.max_model_len == 64
    with pytest.raises(ConfigError, match="max_model_len is 65"):
        start(path, max_model_len=65)


def test_the_text_part_of_a_checkpoint_with_images(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Text alone equals transformers; the vision tower is not read."""
    text = json.loads((checkpoint("gemma3") / "config.json").read_text())
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    torch.manual_seed(0)
    reference = Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=text,
            vision_config=vision,
            mm_tokens_per_image=4,
            image_token_id=0,
            attn_implementation="eager",
        )
    ).eval()
    reference.save_pretrained(tmp_path)
    shutil.copy(checkpoint("gemma3") / "tokenizer.json", tmp_path)
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 12).tolist()
    with torch.inference_mode():
        wanted = reference(torch.tensor([tokens])).logits[0].double().log_softmax(-1).numpy()
    engine = start(tmp_path)
    assert engine.info.family == "gemma3"
    assert np.abs(Driver(engine).logprobs([Row(tokens)]) - wanted).max() <= 1e-4


def test_every_family_offers_the_whole_interface(checkpoint: Callable[[str], Path]) -> None:
    """Windows bound what is seen; masks, copies and forks of pages work as in any model."""
    whole = start(checkpoint("llama")).info.traits
    for name in ("gemma2", "gpt-oss", "mixtral"):
        info = start(checkpoint(name)).info
        assert info.traits == whole
        assert len(info.pool.groups) == 1


def test_small_deviations_of_a_norm_from_one_are_kept(copy: Callable[[str], Path]) -> None:
    """Gemma stores them in bfloat16, which has no number between 1 and 1.0078."""
    path = copy("gemma")
    tensors = load_file(path / "model.safetensors")
    stored = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    stored["model.norm.weight"].fill_(0.001)
    save_file(stored, path / "model.safetensors")
    config = EngineConfig(source=str(path), name=ModelId("m"), dtype="bfloat16", device="cpu")
    with torch.inference_mode():
        model = load_model(config, ModelDirectory(path)).model
    assert isinstance(model, Decoder)
    assert model.norm.weight_H.dtype == torch.float32
    assert torch.allclose(model.norm.weight_H, torch.tensor(1.001), atol=1e-5)
