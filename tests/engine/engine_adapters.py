"""Random LoRA adapters in PEFT's format, and the equivalent merged models."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Recipe:
    """One adapter. ``targets``: suffixes of module paths. ``config``: further values of its
    file."""

    targets: tuple[str, ...] = ATTENTION + MLP
    rank: int = 4
    alpha: float = 8.0
    rank_stabilised: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    dtype: torch.dtype = torch.float32
    config: Mapping[str, Any] = field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        return next((r for name, r in self.ranks.items() if module.endswith(name)), self.rank)

    def scaling_of(self, module: str) -> float:
        alpha = next((a for name, a in self.alphas.items() if module.endswith(name)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


RECIPES = {
    "all": Recipe(),
    "attention": Recipe(targets=("q_proj", "v_proj"), rank=2, alpha=3.0, seed=1),
    "stabilised": Recipe(targets=("k_proj", "down_proj"), rank_stabilised=True, seed=2),
    "patterns": Recipe(
        ranks={"layers.1.self_attn.q_proj": 6, "up_proj": 3},
        alphas={"o_proj": 16.0, "gate_proj": 1.0},
        seed=3,
    ),
    "bfloat16": Recipe(targets=("o_proj", "gate_proj"), dtype=torch.bfloat16, seed=4),
}


def pairs(model: PreTrainedModel, recipe: Recipe) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """(A, B) by module path."""
    generator = torch.Generator().manual_seed(recipe.seed)
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith(recipe.targets):
            rank = recipe.rank_of(name)
            down = torch.randn(rank, module.in_features, generator=generator) * 0.3
            up = torch.randn(module.out_features, rank, generator=generator) * 0.3
            found[name] = (down.to(recipe.dtype), up.to(recipe.dtype))
    assert found
    return found


def write_adapter(path: Path, model: PreTrainedModel, recipe: Recipe) -> Path:
    """The directory that PEFT's ``save_pretrained`` would write."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for module, (down, up) in pairs(model, recipe).items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere/else",
        "r": recipe.rank,
        "lora_alpha": recipe.alpha,
        "lora_dropout": 0.05,
        "use_rslora": recipe.rank_stabilised,
        "rank_pattern": dict(recipe.ranks),
        "alpha_pattern": dict(recipe.alphas),
        "target_modules": list(recipe.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        **recipe.config,
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def merged(model: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """A copy of ``model`` whose weights contain the adapter."""
    whole = copy.deepcopy(model)
    with torch.no_grad():
        for name, (down, up) in pairs(model, recipe).items():
            delta = recipe.scaling_of(name) * (up.float() @ down.float())
            whole.get_submodule(name).weight.add_(delta)
    return whole
