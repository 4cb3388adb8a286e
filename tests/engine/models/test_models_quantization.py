"""Quantised checkpoints equal their plain counterparts; damaged ones are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packed_weights
import pytest
import torch
from engine_checkpoints import VOCAB_SIZE
from engine_driver import Driver, Row
from packed_weights import Packed
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from quire.core.config import EngineConfig
from quire.core.errors import ModelError, ModelFormatError, UnsupportedModel
from quire.core.ids import ModelId
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.engine import Engine
from quire.engine.quantization.mxfp4 import MXFP4

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]

COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
PACKERS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Packed]]] = {
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"},
        packed_weights.awq,
    ),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 16}, packed_weights.gptq),
    "gptq one group": (
        {"quant_method": "gptq", "bits": 4, "group_size": -1},
        lambda weight: packed_weights.gptq(weight, -1),
    ),
    "gptq shuffled": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
        lambda weight: packed_weights.gptq(weight, shuffled=True),
    ),
    "gptq 8 bits": (
        {"quant_method": "gptq", "bits": 8, "group_size": 16},
        lambda weight: packed_weights.gptq(weight, bits=8),
    ),
    "gptq v2": (
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 16,
            "checkpoint_format": "gptq_v2",
        },
        lambda weight: packed_weights.gptq(weight, form="gptq_v2"),
    ),
    "gptq without negatives": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16},
        lambda weight: packed_weights.gptq(weight.abs()),
    ),
    "compressed": (COMPRESSED, packed_weights.compressed),
    "compressed symmetric": (
        COMPRESSED,
        lambda weight: packed_weights.compressed(weight, symmetric=True),
    ),
    "compressed one group": (COMPRESSED, lambda weight: packed_weights.compressed(weight, -1)),
    "compressed shuffled": (
        COMPRESSED,
        lambda weight: packed_weights.compressed(weight, shuffled=True),
    ),
    "fp8 blocks": (
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
        lambda weight: packed_weights.float8(weight, "block"),
    ),
    "compressed fp8 blocks": (
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {
                "group_0": {
                    "weights": {"num_bits": 8, "type": "float", "block_structure": [16, 16]}
                }
            },
        },
        lambda weight: packed_weights.float8(weight, "block"),
    ),
    "fp8 tensor": (
        {"quant_method": "fp8"},
        lambda weight: packed_weights.float8(weight, "tensor"),
    ),
    "fp8 scalar": (
        {"quant_method": "fp8"},
        lambda weight: packed_weights.float8(weight, "scalar", torch.float8_e5m2),
    ),
    "fp8 output": (
        {"quant_method": "compressed-tensors", "format": "float-quantized"},
        lambda weight: packed_weights.float8(weight, "output column"),
    ),
    "fp8 output row": (
        {"quant_method": "fp8"},
        lambda weight: packed_weights.float8(weight, "output"),
    ),
}


def rewrite(path: Path, change: Callable[[Tensors], Tensors], config: dict[str, Any]) -> None:
    save_file(change(load_file(path / WEIGHTS)), path / WEIGHTS)
    values = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**values, **config}))


def start(path: Path) -> Driver:
    return Driver(
        Engine(
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
    )


def logprobs(path: Path) -> np.ndarray[Any, Any]:
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 12).tolist()
    return start(path).logprobs([Row(tokens)])


def pack_all(packer: Callable[[torch.Tensor], Packed]) -> tuple[Any, Any]:
    """Two changes of a checkpoint's tensors: to packed ones, and to the plain ones that they
    encode."""

    def change(tensors: Tensors, plain: bool) -> Tensors:
        changed: Tensors = {}
        for name, tensor in tensors.items():
            if not name.endswith("_proj.weight"):
                changed[name] = tensor
                continue
            stored, weight = packer(tensor)
            if plain:
                changed[name] = weight
            else:
                module = name.removesuffix(".weight")
                changed.update({f"{module}.{key}": value for key, value in stored.items()})
        return changed

    return (lambda tensors: change(tensors, False)), (lambda tensors: change(tensors, True))


@pytest.fixture
def copies(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Two copies of a checkpoint: one to be packed, one to stay plain."""

    def make(name: str) -> tuple[Path, Path]:
        paths = tmp_path / "packed", tmp_path / "plain"
        for path in paths:
            shutil.copytree(checkpoint(name), path)
        return paths

    return make


Copies = Callable[[str], tuple[Path, Path]]


@pytest.mark.parametrize("name", PACKERS)
def test_packed_weights_are_their_plain_ones(name: str, copies: Copies) -> None:
    config, packer = PACKERS[name]
    packed, plain = copies("qwen2")
    to_packed, to_plain = pack_all(packer)
    rewrite(packed, to_packed, {"quantization_config": config})
    rewrite(plain, to_plain, {})
    assert np.abs(logprobs(packed) - logprobs(plain)).max() < 1e-5


def test_experts_and_fused_projections_may_be_packed(copies: Copies) -> None:
    config, packer = PACKERS["gptq"]
    for model, part in [("qwen3-moe", "mlp.experts.4"), ("phi3", "qkv_proj")]:
        packed, plain = copies(model)
        to_packed, to_plain = pack_all(packer)
        rewrite(packed, to_packed, {"quantization_config": config})
        rewrite(plain, to_plain, {})
        assert any(part in name and "qweight" in name for name in load_file(packed / WEIGHTS))
        assert np.abs(logprobs(packed) - logprobs(plain)).max() < 1e-5
        shutil.rmtree(packed), shutil.rmtree(plain)


def pack_experts(tensors: Tensors, plain: bool) -> Tensors:
    changed: Tensors = {}
    for seed, (name, tensor) in enumerate(tensors.items()):
        if not name.endswith(("gate_up_proj", "down_proj")):
            changed[name] = tensor
            continue
        count, inputs, size = tensor.shape
        stored, weight = packed_weights.mxfp4(count, size, inputs, seed)
        if plain:
            changed[name] = weight.contiguous()
        else:
            changed.update({f"{name}_{key}": value for key, value in stored.items()})
    return changed


def test_mxfp4_experts_are_their_plain_ones(copies: Copies) -> None:
    packed, plain = copies("gpt-oss")
    config = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    rewrite(packed, lambda tensors: pack_experts(tensors, False), {"quantization_config": config})
    rewrite(plain, lambda tensors: pack_experts(tensors, True), {})
    assert np.abs(logprobs(packed) - logprobs(plain)).max() < 1e-5


def test_mxfp4_equals_the_dequantisation_of_transformers() -> None:
    stored, _ = packed_weights.mxfp4(3, 8, 64, seed=5)
    ours = MXFP4(ConfigReader({}, "config.json")).dequantize("x", (3, 64, 8), stored)
    theirs = convert_moe_packed_tensors(stored["blocks"], stored["scales"], dtype=torch.bfloat16)
    assert torch.equal(ours, theirs)


def test_extra_biases_of_zeros_are_no_damage(copies: Copies) -> None:
    config, packer = PACKERS["gptq"]
    packed, _ = copies("llama")
    to_packed, _ = pack_all(packer)
    bias = "model.layers.0.mlp.up_proj.bias"
    rewrite(packed, to_packed, {"quantization_config": config})
    whole = logprobs(packed)
    rewrite(packed, lambda tensors: {**tensors, bias: torch.zeros(48)}, {})
    assert np.array_equal(logprobs(packed), whole)
    rewrite(packed, lambda tensors: {**tensors, bias: torch.ones(48)}, {})
    with pytest.raises(ModelFormatError, match=r"unexpected tensor .*up_proj.bias"):
        start(packed)


UP = "model.layers.1.mlp.up_proj"


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def with_tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return lambda tensors: {**tensors, name: make(tensors[name])}


DAMAGES: list[tuple[str, str, dict[str, Any], Any, type[ModelError], str]] = [
    ("no zeros", "awq", {}, without(f"{UP}.qzeros"), ModelFormatError, "missing .*up_proj.qzeros"),
    ("no scales", "gptq", {}, without(f"{UP}.scales"), ModelFormatError, "missing .*scales"),
    ("no g_idx", "gptq shuffled", {}, without(f"{UP}.g_idx"), ModelFormatError, "missing .*g_idx"),
    ("other groups", "awq", {"group_size": 8}, None, ModelFormatError, "qzeros.*has shape"),
    ("uneven groups", "awq", {"group_size": 24}, None, ModelFormatError, "cannot be packed"),
    ("group beyond", "gptq", {}, with_tensor(f"{UP}.g_idx", lambda t: t + 1), ModelFormatError,
     "g_idx names groups"),
    ("group below", "gptq", {}, with_tensor(f"{UP}.g_idx", lambda t: t - 1), ModelFormatError,
     "g_idx names groups"),
    ("huge group", "gptq", {"group_size": 1 << 40}, None, ModelFormatError, "group_size"),
    ("3 bits", "gptq", {"bits": 3}, None, UnsupportedModel, "3 bits.*served are 2, 4 and 8"),
    ("marlin", "gptq", {"checkpoint_format": "marlin"}, None, UnsupportedModel, "marlin"),
    ("gemv", "awq", {"version": "gemv"}, None, UnsupportedModel, "gemv"),
    ("float words", "awq", {}, with_tensor(f"{UP}.qweight", lambda t: t.float()),
     UnsupportedModel, "dtype F32"),
    ("infinite scale", "awq", {}, with_tensor(f"{UP}.scales", lambda t: t * float("inf")),
     ModelFormatError, "NaN or infinite"),
    ("packed otherwise", "compressed", {},
     with_tensor(f"{UP}.weight_packed", lambda t: t[:, :3].contiguous()), ModelFormatError,
     "neither 4 nor 8 bits"),
    ("zeros otherwise", "compressed", {},
     with_tensor(f"{UP}.weight_zero_point", lambda t: t[:, :1].contiguous()), ModelFormatError,
     "weight_zero_point.*has shape"),
    ("scales otherwise", "compressed", {},
     with_tensor(f"{UP}.weight_scale", lambda t: torch.ones(48, 3)), ModelFormatError,
     "weight_scale.*has shape"),
    ("group beyond, compressed", "compressed shuffled", {},
     with_tensor(f"{UP}.weight_g_idx", lambda t: t + 1), ModelFormatError, "names groups"),
    ("no FP8 scale", "fp8 tensor", {}, without(f"{UP}.weight_scale"), ModelFormatError,
     "neither weight_scale"),
    ("other blocks", "fp8 blocks", {"weight_block_size": [8, 8]}, None, ModelFormatError,
     "must be one of"),
    ("odd blocks", "fp8 blocks", {"weight_block_size": [0, 8]}, None, ModelFormatError,
     "weight_block_size"),
    ("packed norm", "awq", {}, lambda t: {**t, "model.norm.qweight": torch.zeros(2)},
     ModelFormatError, "unexpected tensor .*norm.qweight"),
    ("FP8 norm", "fp8 tensor", {},
     with_tensor("model.norm.weight", lambda t: t.to(torch.float8_e4m3fn)), UnsupportedModel,
     "norm.weight.*F8_E4M3"),
    ("bitsandbytes", "awq", {"quant_method": "bitsandbytes"}, None, UnsupportedModel,
     "bitsandbytes.*read are awq, gptq, fp8, mxfp4 and compressed"),
    ("int8", "awq", {"quant_method": "compressed-tensors", "format": "int-quantized"}, None,
     UnsupportedModel, "int-quantized"),
    ("no method", "awq", {"quant_method": 7}, None, ModelFormatError, "quant_method"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("packer", "changes", "damage", "error", "part"),
    [case[1:] for case in DAMAGES],
    ids=[case[0] for case in DAMAGES],
)
def test_damage_is_named(
    packer: str,
    changes: dict[str, Any],
    damage: Callable[[Tensors], Tensors] | None,
    error: type[ModelError],
    part: str,
    copies: Copies,
) -> None:
    config, pack = PACKERS[packer]
    path, _ = copies("llama")
    to_packed, _ = pack_all(pack)
    rewrite(path, to_packed, {"quantization_config": {**config, **changes}})
    if damage is not None:
        rewrite(path, damage, {})
    with pytest.raises(error, match=part) as raised:
        start(path)
    assert type(raised.value) is error


def test_packed_weights_without_a_word_in_the_configuration(copies: Copies) -> None:
    path, _ = copies("llama")
    rewrite(path, pack_all(PACKERS["fp8 tensor"][1])[0], {})
    with pytest.raises(ModelFormatError, match=r"unexpected tensors .*weight_scale"):
        start(path)
