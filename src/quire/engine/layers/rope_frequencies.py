"""The frequencies of rotary position embedding under the published scaling rules.

Linear interpolation, dynamic NTK, Llama 3's frequency bands, YaRN (Peng et al., 2023) and LongRoPE
(Ding et al., 2024).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quire.engine.layers.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, rotary_dim: int) -> Tensor:
    """Radians per position of each of the ``rotary_dim / 2`` planes, float32."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    plain = 1.0 / (_base(rope, rotary_dim) ** exponents)
    if rope.kind == "none":
        return torch.zeros_like(plain)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, rotary_dim)
    if rope.kind == "longrope":
        return plain / torch.tensor(rope.plane_factors)
    return plain


def _base(rope: RopeConfig, rotary_dim: int) -> float:
    """``theta``, stretched to the served length (dynamic NTK)."""
    if rope.kind != "dynamic" or rope.length <= rope.original_length or rotary_dim <= 2:
        return rope.theta
    stretch = rope.factor * rope.length / rope.original_length - (rope.factor - 1)
    return float(rope.theta * stretch ** (rotary_dim / (rotary_dim - 2)))


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
