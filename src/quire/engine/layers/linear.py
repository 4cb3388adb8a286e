"""Linear projections, single or fused."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.parameters import Parameters


class Linear:
    """``y = x W^T + b`` for one or several projections of the same input.

    ``parts`` maps checkpoint prefixes to output sizes; their outputs are concatenated in order.
    """

    def __init__(
        self, parameters: Parameters, parts: Mapping[str, int], in_size: int, *, bias: bool = False
    ) -> None:
        self.weight_OI = parameters.fused(
            {f"{prefix}.weight": size for prefix, size in parts.items()}, in_size
        )
        self.bias_O = (
            parameters.fused({f"{prefix}.bias": size for prefix, size in parts.items()})
            if bias
            else None
        )

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_OI, self.bias_O)
