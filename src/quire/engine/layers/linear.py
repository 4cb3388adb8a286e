"""Linear projections, single or fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.parameters import Parameters


class ProjectionDelta(Protocol):
    """The adapters' contribution to a projection for the tokens of the current step."""

    def add_to(self, y_TO: Tensor, x_TI: Tensor) -> Tensor:
        """Add to ``y_TO`` in place and return it."""
        ...


class Linear:
    """``y = x W^T + b`` for one or several projections of the same input.

    ``parts`` maps checkpoint prefixes to output sizes; their outputs are concatenated in order.
    ``delta`` is None unless an adapter modifies one of them.
    """

    def __init__(
        self, parameters: Parameters, parts: Mapping[str, int], in_size: int, *, bias: bool = False
    ) -> None:
        self.parts = dict(parts)
        self.delta: ProjectionDelta | None = None
        self.weight_OI = parameters.fused(
            {f"{prefix}.weight": size for prefix, size in parts.items()}, in_size
        )
        self.bias_O = (
            parameters.fused({f"{prefix}.bias": size for prefix, size in parts.items()})
            if bias
            else None
        )

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight_OI, self.bias_O)
        return y if self.delta is None else self.delta.add_to(y, x)
