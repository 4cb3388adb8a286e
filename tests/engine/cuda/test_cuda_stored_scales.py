"""A checkpoint's FP8 projections stay as they are in its files, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.core.config import EngineConfig
from quire.core.ids import ModelId
from quire.engine.checkpoint.model_directory import locate
from quire.engine.cuda.backend import adapt_weights
from quire.engine.cuda.linears import FLOAT8, Float8Linear, quantize_rows
from quire.engine.cuda.model_forms import projections
from quire.engine.layers.linear import Linear
from quire.engine.loading import LoadedModel, load_model
from quire.engine.models.decoder import Decoder


def quantized(name: str, weight: Tensor, per_output: bool) -> dict[str, Tensor]:
    if not name.endswith("_proj.weight"):
        return {name: weight}
    stored, scale = quantize_rows(weight if per_output else weight.reshape(1, -1))
    # scales as other tools choose them: the largest weight need not become the largest FP8 number
    stored = (stored.float() / 1.7).to(FLOAT8)
    scale = scale * 1.7 if per_output else scale.reshape(1) * 1.7
    return {name: stored.view(weight.shape), f"{name}_scale": scale}


@pytest.fixture(
    params=[("llama", True), ("llama", False), ("helium", True)],
    ids=["per output", "per tensor", "per output, rotated in pairs"],
)
def directory(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], tmp_path: Path
) -> Path:
    path = tmp_path / "fp8"
    model, per_output = request.param
    shutil.copytree(checkpoint(model), path)
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(path / "model.safetensors").items():
        tensors |= quantized(name, weight, per_output)
    save_file(tensors, path / "model.safetensors")
    values = json.loads((path / "config.json").read_text())
    values["quantization_config"] = {"quant_method": "fp8"}
    (path / "config.json").write_text(json.dumps(values))
    return path


def loaded(path: Path, **settings: object) -> LoadedModel:
    config = EngineConfig(
        source=str(path), name=ModelId("m"), device="cpu", dtype="bfloat16", **settings
    )
    model = load_model(config, locate(str(path)))
    adapt_weights(config, model)
    return model


def linears(model: LoadedModel) -> list[Linear]:
    assert isinstance(model.model, Decoder)
    return projections(model.model)


def test_stored_weights_come_back(directory: Path) -> None:
    stored = load_file(directory / "model.safetensors")
    for linear in linears(loaded(directory)):
        assert isinstance(linear, Float8Linear)
        expected = torch.cat(
            [
                linear.in_order(prefix, stored[f"{prefix}.weight"].view(torch.uint8))
                for prefix in linear.parts
            ]
        )
        assert torch.equal(linear.weight_OI.view(torch.uint8), expected)
        scales = [
            linear.in_order(prefix, stored[f"{prefix}.weight_scale"].reshape(-1).expand(size))
            for prefix, size in linear.parts.items()
        ]
        assert torch.equal(linear.scale_O, torch.cat(scales))


def test_plain_checkpoints_are_quantised_only_when_asked(checkpoint: Callable[[str], Path]) -> None:
    assert not any(isinstance(one, Float8Linear) for one in linears(loaded(checkpoint("llama"))))
    asked = linears(loaded(checkpoint("llama"), weights="float8"))
    assert all(isinstance(one, Float8Linear) for one in asked)
