"""Reads PEFT's ``adapter_config.json``; refuses fields that change results and are not served.

An unknown field that is set is refused too, because it may change results. Which modules have
weights, and of which rank, is read from the weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader

CONFIG_FILE = "adapter_config.json"
MAX_RANK = 4096

_USED = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"}
_WITHOUT_EFFECT = {
    "auto_mapping", "base_model_name_or_path", "corda_config",
    "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode", "init_lora_weights",
    "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "target_modules",
    "task_type",
}  # fmt: skip
"""Used in training only, or derivable from the weights."""

_CHANGES_THE_BASE = ("pissa", "olora", "corda", "lora_ga")
"""Initialisations that subtract the adapter's first state from the base model's weights."""

T = TypeVar("T")

_PLAIN_NAME = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """How the products of an adapter are scaled. ``alphas``: by suffix of a module's path."""

    rank: int
    alpha: float
    rank_stabilised: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        return _lookup(self.ranks, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """The factor of ``B A x``: alpha / rank, or alpha / sqrt(rank) (rsLoRA)."""
        rank, alpha = self.rank_of(module), _lookup(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rank_stabilised else alpha / rank


def read_peft_config(values: dict[str, Any], where: str) -> PeftConfig:
    """The configuration in ``values``, the JSON object of the file ``where``.

    Raises:
        ModelFormatError: a value missing or out of bounds.
        UnsupportedModel: another method than LoRA, or a form of it that is not served.
    """
    config = ConfigReader(values, where)
    kind = config.text("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(
            f"{where} is of type {kind[:80]!r}; served is LORA: train one, or merge the adapter "
            "into its model"
        )
    if config.text("bias", "none") != "none":
        raise UnsupportedModel(
            f"{where} trains biases (bias = {values['bias']!r}): train with bias='none', or merge "
            "the adapter into its model"
        )
    start = str(values.get("init_lora_weights"))
    if start.lower().startswith(_CHANGES_THE_BASE):
        raise UnsupportedModel(
            f"{where} was initialised with {start!r}, which changes the model's own weights: save "
            "it with path_initial_model_for_weight_conversion of PEFT"
        )
    _refuse_unknown(values, where)
    return PeftConfig(
        rank=config.integer("r", MAX_RANK),
        alpha=config.number("lora_alpha", low=0.0, high=1e6),
        rank_stabilised=config.flag("use_rslora", False),
        ranks={name: section.integer(name, MAX_RANK) for name, section in _pattern(config, "rank")},
        alphas={
            name: section.number(name, low=0.0, high=1e6)
            for name, section in _pattern(config, "alpha")
        },
    )


def _refuse_unknown(values: Mapping[str, Any], where: str) -> None:
    known = _USED | _WITHOUT_EFFECT
    set_ones = [name for name, value in values.items() if name not in known and _is_set(value)]
    if set_ones:
        listed = ", ".join(f"{name} = {str(values[name])[:40]}" for name in sorted(set_ones)[:5])
        raise UnsupportedModel(
            f"{where} sets {listed}, which is not served: train a plain LoRA without it, or merge "
            "the adapter into its model"
        )


def _is_set(value: Any) -> bool:
    return value not in (None, False, [], {}, "") and value != "megatron.core"


def _pattern(config: ConfigReader, what: str) -> list[tuple[str, ConfigReader]]:
    """The entries of ``rank_pattern`` or ``alpha_pattern``. Only plain names are accepted, because
    an untrusted regular expression could run for ever; a leading ``^`` means the whole path."""
    section = config.section(f"{what}_pattern")
    if section is None:
        return []
    for name in section.values:
        if not _PLAIN_NAME.fullmatch(name.removeprefix("^")):
            raise UnsupportedModel(
                f"{section.where} has the regular expression {name[:80]!r}; served are module "
                "names and ends of module paths: write one entry for each"
            )
    return [(name, section) for name in section.values]


def _lookup(pattern: Mapping[str, T], module: str, default: T) -> T:
    """The first entry that is the module's path, or a suffix of it that begins after a dot."""
    for name, value in pattern.items():
        if module == name.removeprefix("^") or module.endswith(f".{name}"):
            return value
    return default
