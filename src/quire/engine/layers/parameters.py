"""Allocates a model's tensors and records which checkpoint tensor fills which part of them.

Projections that read the same input are stored as one matrix (fused), because one large product is
faster than three small ones; the checkpoint's tensors are views into it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Parameters:
    """The tensors of one model on one device.

    ``destinations`` maps every checkpoint tensor name that the model needs to the (view of a)
    tensor that it must be copied into. On device ``meta`` nothing is allocated, which is how shapes
    are checked before memory is taken.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.destinations: dict[str, Tensor] = {}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A tensor that the checkpoint's ``name`` fills."""
        return self.fused({name: shape[0]}, *shape[1:])

    def fused(self, num_rows: Mapping[str, int], *row_shape: int) -> Tensor:
        """Checkpoint tensors of ``num_rows`` each, stacked along the first axis."""
        whole = torch.empty(
            sum(num_rows.values()), *row_shape, device=self.device, dtype=self.dtype
        )
        start = 0
        for name, rows in num_rows.items():
            self.destinations[name] = whole[start : start + rows]
            start += rows
        return whole

    @property
    def num_elements(self) -> int:
        return sum(tensor.numel() for tensor in self.destinations.values())
