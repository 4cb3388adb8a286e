"""Rotary position embedding (Su et al., 2021): a step's rotations and their application.

Planes pair element i with element i + rotary_dim / 2 (the layout of Hugging Face checkpoints).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.layers.rope_config import RopeConfig
from quire.engine.layers.rope_frequencies import inverse_frequencies


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Cosine and signed sine of a step's tokens, each ``[T, 1, rotary_dim]``.

    ``query_scale_T11``: factor of the rotated queries; None: 1.
    """

    cos_T1D: Tensor
    sin_T1D: Tensor
    query_scale_T11: Tensor | None = None


class RotaryEmbedding:
    """Cosine and signed sine of a step's positions, computed once per step for all layers.

    ``rotate(x) = x * cos + roll(x, half) * signed_sin`` equals the usual form with a negated half,
    in three operations instead of five. Computed rather than looked up: the size of a table would
    be determined by the checkpoint's claim of its longest position.

    ``frequencies_F``: radians per position of the ``rotary_dim / 2`` planes, float32 on the CPU.
    ``scale``: factor of cosine and sine. ``query_beta`` and ``query_length``: see
    ``RopeConfig.query_beta``.
    """

    def __init__(
        self, rope: RopeConfig, head_dim: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.rotary_dim = rope.rotary_dim(head_dim)
        self.frequencies_F = inverse_frequencies(rope, self.rotary_dim)
        self.scale = rope.attention_factor
        sign = torch.ones(self.rotary_dim // 2) * self.scale
        self._frequencies_D = self.frequencies_F.repeat(2).to(device)
        self._sin_scale_D = torch.cat((-sign, sign)).to(device)
        self.query_beta, self.query_length = rope.query_beta, rope.original_length
        self._dtype = dtype

    def at(self, positions_T: Tensor) -> Rotation:
        angles_T1D = positions_T.float()[:, None, None] * self._frequencies_D
        cos_T1D = angles_T1D.cos().mul_(self.scale)
        sin_T1D = angles_T1D.sin_().mul_(self._sin_scale_D)
        return Rotation(
            cos_T1D.to(self._dtype), sin_T1D.to(self._dtype), self._query_scale(positions_T)
        )

    def _query_scale(self, positions_T: Tensor) -> Tensor | None:
        if self.query_beta == 0:
            return None
        lengths_T = (positions_T.float() / self.query_length).floor_()
        return lengths_T.log1p_().mul_(self.query_beta).add_(1).to(self._dtype)[:, None, None]


def rotate(x_THD: Tensor, rotation: Rotation) -> Tensor:
    """The first ``rotary_dim`` elements of every head rotated, the others unchanged."""
    rotary_dim = rotation.cos_T1D.shape[-1]
    if rotary_dim == x_THD.shape[-1]:
        return _rotate(x_THD, rotation)
    rotated = _rotate(x_THD[..., :rotary_dim], rotation)
    return torch.cat((rotated, x_THD[..., rotary_dim:]), dim=-1)


def _rotate(x_THD: Tensor, rotation: Rotation) -> Tensor:
    half = x_THD.shape[-1] // 2
    return (x_THD * rotation.cos_T1D).addcmul_(x_THD.roll(half, -1), rotation.sin_T1D)


def halves_of_pairs(rows: Tensor, head_dim: int, rotary_dim: int) -> Tensor:
    """Rows of whole heads (the first axis), whose planes pair element 2 i with 2 i + 1, in the
    order in which they pair element i with i + rotary_dim / 2."""
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    pairs, rest = heads[:, :rotary_dim], heads[:, rotary_dim:]
    return torch.cat((pairs[:, 0::2], pairs[:, 1::2], rest), dim=1).flatten(0, 1)
