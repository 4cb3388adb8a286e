"""Linear projections, single or fused, and the gated MLP built of them."""

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


class GatedMLP:
    """``down(silu(gate(x)) * up(x))`` with gate and up in one product."""

    def __init__(
        self, parameters: Parameters, prefix: str, size: int, hidden_size: int, *, bias: bool
    ) -> None:
        self.gate_up = Linear(
            parameters,
            {f"{prefix}.gate_proj": hidden_size, f"{prefix}.up_proj": hidden_size},
            size,
            bias=bias,
        )
        self.down = Linear(parameters, {f"{prefix}.down_proj": size}, hidden_size, bias=bias)

    def __call__(self, x_TH: Tensor) -> Tensor:
        gate, up = self.gate_up(x_TH).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
