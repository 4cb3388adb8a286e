"""Linear projections, single or fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.parameters import Arrange, Parameters


class ProjectionDelta(Protocol):
    """The adapters' contribution to a projection for the tokens of the current step."""

    def add_to(self, y_TO: Tensor, x_TI: Tensor) -> Tensor:
        """Add to ``y_TO`` in place and return it."""
        ...


class Linear:
    """``y = x W^T + b`` for one or several projections of the same input.

    ``parts`` maps checkpoint prefixes to output sizes; their outputs are concatenated in order.
    ``arranged``: the parts whose outputs have another order than in the checkpoint. ``delta`` is
    None unless an adapter modifies one of them.
    """

    def __init__(
        self,
        parameters: Parameters,
        parts: Mapping[str, int],
        in_size: int,
        *,
        bias: bool = False,
        arranged: Mapping[str, Arrange] | None = None,
    ) -> None:
        self.parts = dict(parts)
        self.arranged = dict(arranged or {})
        self.delta: ProjectionDelta | None = None
        self.weight_OI = parameters.fused(
            {f"{prefix}.weight": size for prefix, size in parts.items()}, in_size
        )
        self.bias_O = (
            parameters.fused({f"{prefix}.bias": size for prefix, size in parts.items()})
            if bias
            else None
        )
        for prefix, order in self.arranged.items():
            for kind in ("weight", "bias") if bias else ("weight",):
                parameters.arrange(f"{prefix}.{kind}", order)

    def in_order(self, part: str, rows: Tensor) -> Tensor:
        """Rows that belong to the outputs of ``part``, from the checkpoint's order to this one."""
        order = self.arranged.get(part)
        return rows if order is None else order(rows)

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight_OI, self.bias_O)
        return y if self.delta is None else self.delta.add_to(y, x)
