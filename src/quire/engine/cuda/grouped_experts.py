"""A mixture of experts as two grouped products, without reading the routing back from the device;
for few tokens, as two kernels that compute every pair of a token and an expert separately.

Equals ``quire.engine.layers.experts.Experts``.

Shapes: T tokens, A experts of a token, P = T * A pairs sorted by expert, E experts, H hidden size,
I intermediate size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.engine.cuda.linears import quantize_rows
from quire.engine.cuda.products import ExpertWeights, few_pairs, grouped_linear
from quire.engine.layers.experts import Experts
from quire.engine.layers.mlp import activate

_GROUPED_GENERATIONS = (9, 10)


class GroupedExperts(Experts):
    """Takes over the weights of ``experts``.

    ``float8``: expert weights are stored in E4M3 with a scale per output, and multiplied in the
    inputs' type. The products of many tokens are PyTorch's where it supports these weights, else
    Quire's own; ``batch_invariant`` always uses Quire's own, and sums over experts in a fixed
    order.
    """

    def __init__(
        self, experts: Experts, *, float8: bool = False, batch_invariant: bool = False
    ) -> None:
        self.config, self.router = experts.config, experts.router
        self.gate_up_EOI, self.down_EOI = experts.gate_up_EOI, experts.down_EOI
        self.gate_up_bias_EO = experts.gate_up_bias_EO
        self.down_bias_EO = experts.down_bias_EO
        self._gate_up_scale_EO: Tensor | None = None
        self._down_scale_EO: Tensor | None = None
        experts.gate_up_EOI = experts.down_EOI = torch.empty(0)
        if float8:
            self.gate_up_EOI, self._gate_up_scale_EO = _quantized(self.gate_up_EOI)
            self.down_EOI, self._down_scale_EO = _quantized(self.down_EOI)
        self._in_order = batch_invariant
        self._library = not (batch_invariant or float8) and has_grouped_product(self.gate_up_EOI)
        self._weights = ExpertWeights(
            self.config.activation,
            self.gate_up_EOI,
            self.down_EOI,
            self.gate_up_bias_EO,
            self.down_bias_EO,
            self._gate_up_scale_EO,
            self._down_scale_EO,
        )

    def __call__(self, x_TH: Tensor) -> Tensor:
        weights_TA, experts_TA = self.route(x_TH)
        if self._are_few(x_TH):
            return few_pairs(x_TH, experts_TA, weights_TA, self._weights)
        experts_P, order_P = experts_TA.flatten().sort(stable=True)
        ends_E = torch.searchsorted(
            experts_P, torch.arange(self.config.num_experts, device=x_TH.device), right=True
        ).to(torch.int32)
        rows_PH = x_TH.index_select(0, order_P // self.config.top_k)
        out_PH = self.pairs(rows_PH, experts_P, ends_E)
        of_token_TAH = torch.empty_like(out_PH).index_copy_(0, order_P, out_PH)
        of_token_TAH = of_token_TAH.view(*experts_TA.shape, -1)
        weighted_TAH = of_token_TAH.float() * weights_TA[..., None]
        if not self._in_order:
            return weighted_TAH.sum(dim=1).to(x_TH.dtype)
        total_TH = weighted_TAH[:, 0]
        for expert in range(1, self.config.top_k):  # a library's order of summation may depend on T
            total_TH = total_TH + weighted_TAH[:, expert]
        return total_TH.to(x_TH.dtype)

    def _are_few(self, x_TH: Tensor) -> bool:
        """Whether tokens rarely share an expert, so that each pair may read the expert's weights.
        (PyTorch's grouped product also runs on CPUs, where Triton does not.)"""
        if self._in_order or (self._library and x_TH.device.type != "cuda"):
            return False
        return 2 * len(x_TH) * self.config.top_k <= self.config.num_experts

    def pairs(self, rows_PH: Tensor, experts_P: Tensor, ends_E: Tensor) -> Tensor:
        """Outputs ``[P, H]``; the rows of expert e end at ``ends_E[e]``."""
        gate_up = self._product(
            rows_PH, experts_P, ends_E, self.gate_up_EOI, self.gate_up_bias_EO,
            self._gate_up_scale_EO,
        )  # fmt: skip
        gate, up = gate_up.chunk(2, dim=-1)
        hidden_PI = activate(self.config.activation, gate, up)
        return self._product(
            hidden_PI, experts_P, ends_E, self.down_EOI, self.down_bias_EO, self._down_scale_EO
        )

    def _product(
        self,
        x_PI: Tensor,
        experts_P: Tensor,
        ends_E: Tensor,
        weight_EOI: Tensor,
        bias_EO: Tensor | None,
        scale_EO: Tensor | None,
    ) -> Tensor:
        if not self._library:
            return grouped_linear(x_PI.contiguous(), weight_EOI, ends_E, bias_EO, scale_EO)
        y_PO: Tensor = torch._grouped_mm(x_PI, weight_EOI.transpose(1, 2), offs=ends_E)
        return y_PO if bias_EO is None else y_PO.add_(bias_EO.index_select(0, experts_P))


def has_grouped_product(weight_EOI: Tensor) -> bool:
    """Whether ``torch._grouped_mm`` takes these weights without waiting for the device: bfloat16,
    rows of a multiple of 16 bytes, on Hopper and datacenter Blackwell. On other devices it reads
    the groups' ends back, which a recording does not allow."""
    if not hasattr(torch, "_grouped_mm") or weight_EOI.dtype != torch.bfloat16:
        return False
    aligned = all(size % 8 == 0 for size in weight_EOI.shape[1:])
    device = weight_EOI.device
    return aligned and (
        device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in _GROUPED_GENERATIONS
    )


def _quantized(weight_EOI: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise one expert at a time, so that only one float32 copy exists at a time."""
    scale_EO = torch.empty(weight_EOI.shape[:2], dtype=torch.float32, device=weight_EOI.device)
    quantized = torch.empty(weight_EOI.shape, dtype=torch.float8_e4m3fn, device=weight_EOI.device)
    for expert, weight_OI in enumerate(weight_EOI):
        quantized[expert], scale_O1 = quantize_rows(weight_OI)
        scale_EO[expert] = scale_O1[:, 0]
    return quantized, scale_EO
