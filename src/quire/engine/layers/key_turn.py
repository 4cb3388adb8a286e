"""Moving rotated keys to other positions: the angles by which each of a model's ropes turns them.

A key at position p was rotated by the angles of p and scaled by the rope's attention factor; at
position q it would have been rotated by those of q, with the same factor. The key is therefore
turned by the difference of the two, for any scaling rule, and the factor is unchanged. The
difference is computed from the angles as the model computes them (products in float32), so that a
turned key equals the key that the model would have written there, except for the rounding of the
cache and of the turn itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.batch import F32, I32
from quire.engine.layers.rope_config import RopeConfig
from quire.engine.layers.rope_frequencies import inverse_frequencies
from quire.engine.layers.rotary import Rotation


class KeyTurn:
    """``rope_of_layer``: the index in ``ropes`` of each layer's rope."""

    def __init__(
        self, ropes: Sequence[RopeConfig], rope_of_layer: Sequence[int], head_dim: int
    ) -> None:
        self.rope_of_layer = tuple(rope_of_layer)
        self._frequencies: list[F32] = [
            inverse_frequencies(rope, rope.rotary_dim(head_dim)).numpy() for rope in ropes
        ]

    def angles(self, positions_S: I32, targets_S: I32) -> list[F32]:
        """For each rope ``[S, 2, planes]``: cosines and sines of the turns of S slots."""
        found = []
        for frequencies in self._frequencies:
            turn = _angles(targets_S, frequencies) - _angles(positions_S, frequencies)
            found.append(np.stack((np.cos(turn), np.sin(turn)), axis=1).astype(np.float32))
        return found

    def rotations(self, positions_S: I32, targets_S: I32, device: torch.device) -> list[Rotation]:
        """The turns of ``angles`` in the form for ``quire.engine.layers.rotary.rotate``."""
        found = []
        for angles in self.angles(positions_S, targets_S):
            angles_S2F = torch.from_numpy(angles).to(device)
            cos_S1F, sin_S1F = angles_S2F[:, :1], angles_S2F[:, 1:]
            found.append(
                Rotation(torch.cat((cos_S1F, cos_S1F), -1), torch.cat((-sin_S1F, sin_S1F), -1))
            )
        return found


def _angles(positions_S: I32, frequencies: F32) -> NDArray[np.float64]:
    products: F32 = positions_S.astype(np.float32)[:, None] * frequencies
    return products.astype(np.float64)
