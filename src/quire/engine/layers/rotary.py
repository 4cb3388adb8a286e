"""Rotary position embedding (Su et al., 2021) and its scaled forms.

Owns the frequencies. Scaling follows the published rules: linear
interpolation, Llama 3's frequency bands, and YaRN (Peng et al., 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quire.core.errors import UnsupportedModel
from quire.engine.config_reader import ConfigReader

MAX_POSITIONS = 1 << 24
RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """``factor`` and what follows matter to scaled kinds only; lengths are in tokens."""

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


def read_rope(config: ConfigReader, max_positions: int) -> RopeConfig:
    """The rotation of a ``config.json``, in either of transformers' two spellings.

    Raises:
        UnsupportedModel: a scaling rule that is not built in.
    """
    scaling = config.section("rope_parameters") or config.section("rope_scaling")
    if scaling is None:
        return RopeConfig(theta=_theta(config))
    theta = _theta(scaling if scaling.has("rope_theta") else config)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return RopeConfig(theta)
    factor = scaling.number("factor", low=1e-3, high=1e6) if kind != "default" else 1.0
    original = scaling.integer(
        "original_max_position_embeddings", MAX_POSITIONS, default=max_positions
    )
    if kind == "linear":
        return RopeConfig(theta, "linear", factor)
    if kind == "llama3":
        low = scaling.number("low_freq_factor", low=1e-3, high=1e6, default=1.0)
        high = scaling.number("high_freq_factor", low=1e-3, high=1e6, default=4.0)
        return RopeConfig(theta, "llama3", factor, original, low, high)
    if kind == "yarn":
        return _read_yarn(scaling, theta, factor, original)
    raise UnsupportedModel(
        f"{config.where} asks for rope_type {kind!r}; built in are default, linear, llama3, yarn: "
        "use a checkpoint with one of these"
    )


def _theta(config: ConfigReader) -> float:
    return config.number("rope_theta", low=1.0, high=1e12, default=10000.0)


def _read_yarn(scaling: ConfigReader, theta: float, factor: float, original: int) -> RopeConfig:
    mscale = scaling.number("mscale", low=0.0, high=100.0, default=0.0)
    mscale_all = scaling.number("mscale_all_dim", low=0.0, high=100.0, default=0.0)
    if mscale and mscale_all:
        attention = _yarn_temperature(factor, mscale) / _yarn_temperature(factor, mscale_all)
    else:
        attention = _yarn_temperature(factor, 1.0)
    return RopeConfig(
        theta,
        "yarn",
        factor,
        original,
        beta_fast=scaling.number("beta_fast", low=1e-3, high=1e6, default=32.0),
        beta_slow=scaling.number("beta_slow", low=1e-3, high=1e6, default=1.0),
        attention_factor=scaling.number("attention_factor", low=0.0, high=1e3, default=attention),
        truncate=scaling.flag("truncate", True),
    )


def _yarn_temperature(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def inverse_frequencies(rope: RopeConfig, rotary_dim: int) -> Tensor:
    """Radians per position of each of the ``rotary_dim / 2`` planes, float32."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    return _yarn(rope, plain, rotary_dim)


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    wavelength = 2 * math.pi / plain
    turns = rope.original_length / wavelength
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return (1 - smooth) * plain / rope.factor + smooth * plain


def _yarn(rope: RopeConfig, plain: Tensor, rotary_dim: int) -> Tensor:
    def plane_of(num_turns: float) -> float:
        ratio = rope.original_length / (num_turns * 2 * math.pi)
        return rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = plane_of(rope.beta_fast), plane_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = max(high - low, 1e-3)
    planes = torch.arange(rotary_dim // 2, dtype=torch.float32)
    interpolated = ((planes - low) / width).clamp(0.0, 1.0)
    return plain / rope.factor * interpolated + plain * (1 - interpolated)


class RotaryEmbedding:
    """Cosine and signed sine of a step's positions, computed once per step for all layers.

    ``rotate(x) = x * cos + roll(x, half) * signed_sin`` equals the usual form with a negated half,
    in three operations instead of five. Computed rather than looked up: a table would be sized by
    the checkpoint's word for its longest position.
    """

    def __init__(
        self, rope: RopeConfig, head_dim: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        frequencies = inverse_frequencies(rope, head_dim)
        sign = torch.ones(head_dim // 2) * rope.attention_factor
        self._frequencies_D = torch.cat((frequencies, frequencies)).to(device)
        self._sin_scale_D = torch.cat((-sign, sign)).to(device)
        self._cos_scale = rope.attention_factor
        self._dtype = dtype

    def at(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine for a step's tokens, each ``[T, 1, head_dim]``."""
        angles_T1D = positions_T.float()[:, None, None] * self._frequencies_D
        cos_T1D = angles_T1D.cos().mul_(self._cos_scale)
        return cos_T1D.to(self._dtype), angles_T1D.sin_().mul_(self._sin_scale_D).to(self._dtype)


def rotate(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    half = x_THD.shape[-1] // 2
    return (x_THD * cos_T1D).addcmul_(x_THD.roll(half, -1), sin_T1D)
