"""The configuration of rotary position embedding: the scaling rule and its parameters.

Reads it in the spellings of both major versions of transformers. Knows the rules by name only;
``quire.engine.layers.rope_frequencies`` applies them.

Two rules depend on a length: LongRoPE has one set of factors for short and one for long contexts,
dynamic NTK stretches its base as the context grows. Keys keep the rotation that they were written
with and are shared between requests, so the length that the engine serves decides, once
(``RopeConfig.for_length``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader

MAX_POSITIONS = 1 << 24
RopeKind = Literal["default", "none", "linear", "dynamic", "llama3", "yarn", "longrope"]
_KINDS: dict[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """``factor`` and the following fields apply to scaled kinds only; lengths are in tokens.

    Kind ``none`` rotates nothing: its frequencies are zero. ``rotary_fraction``: the share of every
    head that is rotated. ``plane_factors``: divisors of each plane's frequency (LongRoPE), those in
    use; ``long_factors`` replace them beyond ``original_length``. ``length``: the served length
    (dynamic NTK); 0 is the original length. ``query_beta``: queries at position p are multiplied by
    ``1 + query_beta * log(1 + floor(p / original_length))`` after the rotation (Llama 4's scale,
    also used by Ministral 3).
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_length: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    rotary_fraction: float = 1.0
    plane_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    length: int = 0
    query_beta: float = 0.0

    def rotary_dim(self, head_dim: int) -> int:
        return int(head_dim * self.rotary_fraction)

    def longest(self, max_positions: int) -> int:
        """The longest context, given the configuration's ``max_position_embeddings``. YaRN and
        dynamic NTK extend it beyond a ``max_position_embeddings`` that was not adapted."""
        if self.kind not in ("yarn", "dynamic"):
            return max_positions
        return max(max_positions, min(int(self.original_length * self.factor), MAX_POSITIONS))

    def for_length(self, num_tokens: int) -> RopeConfig:
        """The rotation of an engine that serves contexts of up to ``num_tokens``."""
        if self.kind == "dynamic":
            return replace(self, length=max(num_tokens, self.original_length))
        if self.kind == "longrope" and num_tokens > self.original_length:
            return replace(self, plane_factors=self.long_factors)
        return self


def read_rope(
    config: ConfigReader,
    max_positions: int,
    head_dim: int,
    *,
    scaling: ConfigReader | None = None,
    default_theta: float = 10000.0,
) -> RopeConfig:
    """The rotation of a ``config.json``, in either of transformers' two spellings.

    ``scaling``: the section to read, for models with several; by default it is looked up.

    Raises:
        UnsupportedModel: a scaling rule that is not built in.
        ModelFormatError: a value missing or out of bounds.
    """
    if scaling is None:
        scaling = rope_section(config)
    source = scaling if scaling is not None else config
    base = RopeConfig(
        theta=_first(source, config, "rope_theta", 1.0, 1e12, default_theta),
        rotary_fraction=_first(source, config, "partial_rotary_factor", 1e-3, 1.0, 1.0),
    )
    rotary_dim = base.rotary_dim(head_dim)
    if rotary_dim < 2 or rotary_dim % 2:
        raise ModelFormatError(
            f"{config.where} rotates {rotary_dim} of {head_dim} elements of a head; it must be an "
            "even number: check head_dim and partial_rotary_factor"
        )
    if scaling is None:
        return base
    name = scaling.text("rope_type", scaling.text("type", "default"))
    kind = _KINDS.get(name)
    if scaling.has("short_factor"):
        kind = "longrope"  # the first Phi-3 checkpoints call it yarn
    if kind is None:
        raise UnsupportedModel(
            f"{config.where} asks for rope_type {name!r}; built in are {', '.join(_KINDS)}: "
            "use a checkpoint with one of these"
        )
    if kind == "default":
        return base
    return _read_scaled(replace(base, kind=kind), config, scaling, max_positions, head_dim)


def rope_section(config: ConfigReader) -> ConfigReader | None:
    """The rotation's own section, under its newer or its older name; None: there is none.

    Raises:
        ModelFormatError: it exists under both names, and they differ.
    """
    new, old = config.section("rope_parameters"), config.section("rope_scaling")
    if new is None or old is None:
        return new if old is None else old
    if new.values and old.values and new.values != old.values:
        raise ModelFormatError(
            f"{config.where} has rope_parameters and rope_scaling, and they differ: keep the one "
            "that the model was trained with"
        )
    return new if new.values else old


def _original_length(config: ConfigReader, scaling: ConfigReader, max_positions: int) -> int:
    name = "original_max_position_embeddings"
    outer = config.integer(name, MAX_POSITIONS, default=max_positions)
    inner = scaling.integer(name, MAX_POSITIONS, default=outer)
    if config.has(name) and inner != outer:
        raise ModelFormatError(
            f"{config.where} has {name} = {outer}, and {inner} in {scaling.where}: keep the one "
            "that the model was trained with"
        )
    return inner


def _read_scaled(
    base: RopeConfig,
    config: ConfigReader,
    scaling: ConfigReader,
    max_positions: int,
    head_dim: int,
) -> RopeConfig:
    original = _original_length(config, scaling, max_positions)
    if base.kind == "longrope":
        base = replace(base, original_length=original)
        return _read_longrope(base, config, scaling, max_positions, head_dim)
    base = replace(
        base, factor=scaling.number("factor", low=1e-3, high=1e6), original_length=original
    )
    if base.kind == "llama3":
        return replace(
            base,
            low_freq_factor=scaling.number("low_freq_factor", low=1e-3, high=1e6, default=1.0),
            high_freq_factor=scaling.number("high_freq_factor", low=1e-3, high=1e6, default=4.0),
        )
    if base.kind != "yarn":
        return base
    if base.theta <= 1:  # the rule divides by its logarithm
        raise ModelFormatError(
            f"{config.where} has rope_theta = {base.theta:g}, with which YaRN has no frequencies: "
            "it must be above 1"
        )
    return _read_yarn(base, scaling)


def _read_yarn(base: RopeConfig, scaling: ConfigReader) -> RopeConfig:
    mscale = scaling.number("mscale", low=0.0, high=100.0, default=0.0)
    mscale_all = scaling.number("mscale_all_dim", low=0.0, high=100.0, default=0.0)
    if mscale and mscale_all:
        attention = _yarn_temperature(base.factor, mscale) / _yarn_temperature(
            base.factor, mscale_all
        )
    else:
        attention = _yarn_temperature(base.factor, 1.0)
    return replace(
        base,
        beta_fast=scaling.number("beta_fast", low=1e-3, high=1e6, default=32.0),
        beta_slow=scaling.number("beta_slow", low=1e-3, high=1e6, default=1.0),
        attention_factor=scaling.number("attention_factor", low=0.0, high=1e3, default=attention),
        truncate=scaling.flag("truncate", True),
    )


def _yarn_temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _read_longrope(
    base: RopeConfig,
    config: ConfigReader,
    scaling: ConfigReader,
    max_positions: int,
    head_dim: int,
) -> RopeConfig:
    original = base.original_length
    factor = scaling.number("factor", low=1e-3, high=1e6, default=max_positions / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    num_planes = base.rotary_dim(head_dim) // 2
    return replace(
        base,
        factor=factor,
        attention_factor=scaling.number("attention_factor", low=0.0, high=1e3, default=default),
        plane_factors=scaling.numbers("short_factor", num_planes, low=1e-3, high=1e6),
        long_factors=scaling.numbers("long_factor", num_planes, low=1e-3, high=1e6),
    )


def _first(
    source: ConfigReader,
    config: ConfigReader,
    name: str,
    low: float,
    high: float,
    default: float,
) -> float:
    """The number ``name`` of the rope's own section, else of the whole configuration."""
    if source.has(name):
        config.set_aside(name)
    return (source if source.has(name) else config).number(
        name, low=low, high=high, default=default
    )
