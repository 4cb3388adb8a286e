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
MLPStorage = Literal["single", "fused", "granite"]

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
    """``storage``: the checkpoint's names of the tensors: ``gate_proj``, ``up_proj`` and
    ``down_proj`` (``single``); gate and up as one ``gate_up_proj`` (``fused``, Phi-3), or as one
    ``input_linear``, before ``output_linear`` (``granite``, Granite 4)."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False
    storage: MLPStorage = "single"


class GatedMLP:
    """``down(activation(gate(x)) * up(x))``.

    ``gate_up.weight_OI`` is ``[2 * I, H]``, gate first; ``down.weight_OI`` is ``[H, I]``.
    """

    def __init__(self, parameters: Parameters, prefix: str, size: int, config: MLPConfig) -> None:
        width = config.intermediate_size
        inputs, output = _NAMES[config.storage]
        parts = {f"{prefix}.{name}": 2 * width // len(inputs) for name in inputs}
        self.activation = config.activation
        self.gate_up = Linear(parameters, parts, size, bias=config.bias)
        self.down = Linear(parameters, {f"{prefix}.{output}": size}, width, bias=config.bias)

    def __call__(self, x_TH: Tensor) -> Tensor:
        return self.down(self.hidden(x_TH))

    def hidden(self, x_TH: Tensor) -> Tensor:
        """The input of the down projection, ``[T, I]``."""
        gate, up = self.gate_up(x_TH).chunk(2, dim=-1)
        return activate(self.activation, gate, up)


_NAMES: dict[MLPStorage, tuple[tuple[str, ...], str]] = {
    "single": (("gate_proj", "up_proj"), "down_proj"),
    "fused": (("gate_up_proj",), "down_proj"),
    "granite": (("input_linear",), "output_linear"),
}
