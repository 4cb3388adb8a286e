"""Allocates a model's tensors and records which checkpoint tensor fills which part of them.

Projections that read the same input are stored as one matrix (fused), because one large product is
faster than three small ones; the checkpoint's tensors are views into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Arrange = Callable[[Tensor], Tensor]
"""Reorders the rows (the first axis) of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """The destination of one checkpoint tensor: ``target`` is a view into a tensor of the model.

    The checkpoint stores it with ``shape``. ``target`` holds as many elements in the same order,
    possibly with other axes and any strides. ``offset`` is added to the stored values. ``pick``
    selects the part of the stored tensor that this process holds (None: all), and ``arrange``
    reorders the rows of that part (None: as stored).
    """

    target: Tensor
    shape: tuple[int, ...]
    offset: float = 0.0
    pick: Callable[[Tensor], Tensor] | None = None
    arrange: Arrange | None = None

    def fill(self, stored: Tensor) -> None:
        """Copy a tensor of ``shape`` in, converted to the model's dtype."""
        if self.pick is not None:
            stored = self.pick(stored)
        if self.arrange is not None:
            stored = self.arrange(stored)
        self.target.copy_(stored.reshape(self.target.shape))
        if self.offset:  # in the target's dtype, which is the more exact one
            self.target.add_(self.offset)


class Parameters:
    """The tensors of one model on one device.

    ``destinations`` has one entry for every checkpoint tensor that the model needs, by name. On
    device ``meta`` nothing is allocated, which is how shapes are checked before memory is taken.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.destinations: dict[str, Destination] = {}

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A tensor that is filled from the checkpoint's ``name``."""
        return self.fused({name: shape[0]}, *shape[1:])

    def fused(self, num_rows: Mapping[str, int], *row_shape: int) -> Tensor:
        """Checkpoint tensors of ``num_rows`` each, stacked along the first axis."""
        whole = self.empty(sum(num_rows.values()), *row_shape)
        start = 0
        for name, rows in num_rows.items():
            self.fill(name, whole[start : start + rows])
            start += rows
        return whole

    def norm_weight(self, name: str, size: int, offset: float = 0.0) -> Tensor:
        """The weight of a norm: the stored values plus ``offset``.

        With an offset it is float32: small deviations from one would be lost in bfloat16.
        """
        weight_H = self.empty(size, dtype=torch.float32 if offset else self.dtype)
        self.fill(name, weight_H, offset=offset)
        return weight_H

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the model that several calls of ``fill`` describe part by part."""
        return torch.empty(*shape, device=self.device, dtype=dtype or self.dtype)

    def fill(
        self,
        name: str,
        target: Tensor,
        shape: tuple[int, ...] | None = None,
        offset: float = 0.0,
    ) -> None:
        """Record that the checkpoint's ``name``, stored with ``shape`` (default: that of
        ``target``), fills ``target``."""
        self.destinations[name] = Destination(target, shape or tuple(target.shape), offset)

    def arrange(self, name: str, order: Arrange) -> None:
        """Have ``order`` applied to the checkpoint's ``name`` when it is loaded."""
        self.destinations[name] = replace(self.destinations[name], arrange=order)

    @property
    def num_elements(self) -> int:
        return sum(destination.target.numel() for destination in self.destinations.values())
