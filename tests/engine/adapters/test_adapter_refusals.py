"""Adapters that cannot be served are refused with their figures before memory is allocated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_adapters import Recipe, write_adapter
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from quire.core.config import AdapterConfig, EngineConfig
from quire.core.errors import ModelFormatError, ModelNotFound, QuireError, UnsupportedModel
from quire.core.ids import ModelId
from quire.engine.adapters.peft_config import read_peft_config
from quire.engine.adapters.peft_directory import ModuleShape, load_adapter, load_adapters

Q = "base_model.model.model.layers.0.self_attn.q_proj"
SMALL = Recipe(targets=("layers.0.self_attn.q_proj",))
SHAPES = {"model.layers.0.self_attn.q_proj": ModuleShape(32, 32)}


@pytest.fixture
def directory(tmp_path: Path, reference: Callable[[str], PreTrainedModel]) -> Path:
    return write_adapter(tmp_path / "adapter", reference("llama"), SMALL)


def load(directory: Path) -> Any:
    return load_adapter(AdapterConfig("a", str(directory)), SHAPES)


def change_config(directory: Path, **values: Any) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def test_an_adapter_that_is_not_required_keeps_its_index_and_its_problem(directory: Path) -> None:
    gone = directory.parent / "gone"
    wanted = [
        AdapterConfig("gone", str(gone), is_needed=False),
        AdapterConfig("here", str(directory), is_needed=False),
    ]
    missing, there = load_adapters(wanted, SHAPES)
    assert (missing.name, missing.rank, missing.digest) == ("gone", 0, "")
    assert str(gone) in missing.problem
    assert (there.name, there.rank, there.problem) == ("here", 4, "")


@pytest.mark.parametrize("source", ["/no/such/adapter", "formal", "./formal", "a/b/c"])
def test_an_adapter_that_is_not_there_is_not_called_a_model(source: str) -> None:
    with pytest.raises(ModelNotFound, match=r"adapter gone: .* nor a hub id .*: an adapter is a"):
        load_adapters([AdapterConfig("gone", source)], SHAPES)


def test_an_adapter_is_served_and_its_digest_covers_its_configuration(directory: Path) -> None:
    adapter = load(directory)
    assert (adapter.rank, list(adapter.modules)) == (4, list(SHAPES))
    before = adapter.digest
    change_config(directory, lora_alpha=9)
    assert load(directory).digest != before


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"peft_type": "IA3"}, UnsupportedModel, "type 'IA3'; served is LORA"),
        ({"peft_type": None}, ModelFormatError, "no 'peft_type'"),
        ({"use_dora": True}, UnsupportedModel, "use_dora = True"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedModel, "modules_to_save"),
        ({"bias": "all"}, UnsupportedModel, "biases"),
        ({"lora_bias": True}, UnsupportedModel, "lora_bias"),
        ({"fan_in_fan_out": True}, UnsupportedModel, "fan_in_fan_out"),
        ({"layer_replication": [[0, 1]]}, UnsupportedModel, "layer_replication"),
        ({"target_parameters": ["experts.down_proj"]}, UnsupportedModel, "target_parameters"),
        ({"of_next_year": 3}, UnsupportedModel, "of_next_year = 3"),
        ({"init_lora_weights": "pissa_niter_4"}, UnsupportedModel, "'pissa_niter_4'"),
        ({"r": 0}, ModelFormatError, "r = '0'"),
        ({"r": 1 << 40}, ModelFormatError, "from 1 to 4096"),
        ({"r": True}, ModelFormatError, "r = 'True'"),
        ({"lora_alpha": float("nan")}, ModelFormatError, "lora_alpha"),
        ({"r": 5}, ModelFormatError, r"rank 5 of at most 4096\) ask for \[5, 32\]"),
        ({"rank_pattern": {"q_proj": 3}}, ModelFormatError, "rank 3"),
        ({"rank_pattern": {"(a+)+$": 3}}, UnsupportedModel, "regular expression"),
        ({"alpha_pattern": {"q.*": 3}}, UnsupportedModel, "regular expression"),
        ({"alpha_pattern": ["q_proj"]}, ModelFormatError, "an object"),
    ],
)
def test_configurations(
    directory: Path, values: dict[str, Any], error: type[QuireError], text: str
) -> None:
    change_config(directory, **values)
    with pytest.raises(error, match=text):
        load(directory)


def _rename(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[new] = tensors.pop(old)

    return change


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda t: t.pop(f"{Q}.lora_B.weight"), ModelFormatError, "only one of lora_A and lora_B"),
        (lambda t: t.clear(), ModelFormatError, "no tensors"),
        (
            lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.ones(32)}),
            UnsupportedModel,
            "magnitude",
        ),
        (
            _rename(f"{Q}.lora_A.weight", "base_model.model.lm_head.lora_A.weight"),
            UnsupportedModel,
            "lm_head.*those are q_proj",
        ),
        (
            _rename(f"{Q}.lora_A.weight", f"{Q.replace('.0.', '.7.')}.lora_A.weight"),
            UnsupportedModel,
            "layers.7",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.default.weight": torch.ones(4, 32)}),
            ModelFormatError,
            "twice",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(4, 31)}),
            ModelFormatError,
            r"shape \[4, 31\]",
        ),
        (
            lambda t: t.update({f"{Q}.lora_B.weight": torch.ones(4, 32)}),
            ModelFormatError,
            r"lora_B.*shape \[4, 32\]",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(4, 32, dtype=torch.int8)}),
            UnsupportedModel,
            "dtype I8",
        ),
        (
            lambda t: t[f"{Q}.lora_A.weight"].fill_(float("nan")),
            ModelFormatError,
            "NaN or infinite",
        ),
    ],
)
def test_weights(
    directory: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    error: type[QuireError],
    text: str,
) -> None:
    change_tensors(directory, change)
    with pytest.raises(error, match=text):
        load(directory)


def test_files(directory: Path) -> None:
    weights = directory / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFormatError, match="truncated or damaged"):
        load(directory)
    weights.unlink()
    with pytest.raises(ModelFormatError, match="the weights are missing"):
        load(directory)
    (directory / "adapter_model.bin").write_bytes(b"\x80")
    with pytest.raises(ModelFormatError, match="pickle"):
        load(directory)
    os.mkfifo(weights)
    with pytest.raises(ModelFormatError, match="not a regular file"):
        load(directory)
    (directory / "adapter_config.json").unlink()
    with pytest.raises(ModelFormatError, match=r"no adapter_config\.json"):
        load(directory)
    with pytest.raises(ModelNotFound):
        load(directory / "absent")


def test_scaling_follows_patterns_and_rank_stabilisation() -> None:
    values = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {"layers.1.q_proj": 16, "^model.up_proj": 2},
        "alpha_pattern": {"q_proj": 32},
    }
    plain = read_peft_config(values, "f")
    assert plain.scaling_of("model.layers.0.v_proj") == 2.0
    assert plain.scaling_of("model.layers.0.q_proj") == 8.0
    assert plain.scaling_of("model.layers.1.q_proj") == 2.0
    assert plain.scaling_of("model.layers.11.q_proj") == 8.0
    assert plain.scaling_of("model.up_proj") == 4.0
    assert plain.scaling_of("x.model.up_proj") == 2.0
    stabilised = read_peft_config({**values, "use_rslora": True}, "f")
    assert stabilised.scaling_of("model.layers.0.v_proj") == 4.0


def test_a_backend_without_adapters_is_not_chosen(
    directory: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from quire.core.errors import ConfigError
    from quire.engine import backend
    from quire.engine.engine import Engine
    from quire.engine.torch_backend import TorchBackend

    class Without(TorchBackend):
        name = "without"
        serves_adapters = False

    monkeypatch.setattr(backend, "BACKENDS", (Without(), TorchBackend()))
    config = EngineConfig(
        source=str(checkpoint("llama")),
        name=ModelId("m"),
        num_blocks=4,
        num_threads=1,
        adapters=(AdapterConfig("a", str(directory)),),
    )
    assert Engine(config).info.backend == "torch"
    plain = EngineConfig(
        source=str(checkpoint("llama")), name=ModelId("m"), num_blocks=4, num_threads=1
    )
    assert Engine(plain).info.backend == "without"
    named = EngineConfig(
        source=config.source, name=config.name, backend="without", adapters=config.adapters
    )
    with pytest.raises(ConfigError, match="does not serve adapters"):
        Engine(named)
