"""The gated MLP (Shazeer, 2020) with the activations that the families use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.linear import Linear
from quire.engine.layers.parameters import Parameters

Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]

_CLAMP = 7.0
_SLOPE = 1.702


def activate(kind: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """The input of the down projection. ``clamped_swiglu`` is that of gpt-oss: both inputs are
    clamped at 7, and 1 is added to ``up``, so that the gate alone passes where ``up`` is 0."""
    if kind == "silu":
        return F.silu(gate) * up
    if kind == "gelu_tanh":
        return F.gelu(gate, approximate="tanh") * up
    gate, up = gate.clamp(max=_CLAMP), up.clamp(-_CLAMP, _CLAMP)
    return (up + 1) * (gate * torch.sigmoid(_SLOPE * gate))


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """``fused``: the checkpoint stores gate and up as one tensor ``gate_up_proj`` (Phi-3)."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False
    fused: bool = False


class GatedMLP:
    """``down(activation(gate(x)) * up(x))``.

    ``gate_up.weight_OI`` is ``[2 * I, H]``, gate first; ``down.weight_OI`` is ``[H, I]``.
    """

    def __init__(self, parameters: Parameters, prefix: str, size: int, config: MLPConfig) -> None:
        width = config.intermediate_size
        parts = (
            {f"{prefix}.gate_up_proj": 2 * width}
            if config.fused
            else {f"{prefix}.gate_proj": width, f"{prefix}.up_proj": width}
        )
        self.activation = config.activation
        self.gate_up = Linear(parameters, parts, size, bias=config.bias)
        self.down = Linear(parameters, {f"{prefix}.down_proj": size}, width, bias=config.bias)

    def __call__(self, x_TH: Tensor) -> Tensor:
        return self.down(self.hidden(x_TH))

    def hidden(self, x_TH: Tensor) -> Tensor:
        """The input of the down projection, ``[T, I]``."""
        gate, up = self.gate_up(x_TH).chunk(2, dim=-1)
        return activate(self.activation, gate, up)
