"""A mixture of experts in place of an MLP: the router, and products grouped by expert.

Legend: T tokens, H hidden size, E experts, A experts of a token (``top_k``), I intermediate size,
P pairs of a token and an expert, sorted by expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.linear import Linear
from quire.engine.layers.mlp import Activation, activate
from quire.engine.layers.parameters import Parameters

ExpertStorage = Literal["mixtral", "qwen3_moe", "gpt_oss", "granite"]


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """``scoring``: a softmax over all experts before choosing the best (``all``), or choosing the
    best logits before a softmax over these (``chosen``). ``normalize`` makes a token's weights sum
    to one (with ``chosen`` they always do). ``storage``: how the checkpoint names and shapes the
    tensors; the built layer is the same for all."""

    num_experts: int
    top_k: int
    intermediate_size: int
    activation: Activation = "silu"
    scoring: Literal["all", "chosen"] = "all"
    normalize: bool = True
    router_bias: bool = False
    expert_bias: bool = False
    storage: ExpertStorage = "qwen3_moe"


class Experts:
    """``sum over chosen experts of weight * down(activation(gate(x)) * up(x))``.

    ``router``: ``weight_OI`` is ``[E, H]``. ``gate_up_EOI`` is ``[E, 2 * I, H]``, gate first;
    ``down_EOI`` is ``[E, H, I]``; ``gate_up_bias_EO`` and ``down_bias_EO`` are None without biases.
    """

    def __init__(
        self, parameters: Parameters, prefix: str, size: int, config: ExpertsConfig
    ) -> None:
        self.config = config
        count, width = config.num_experts, config.intermediate_size
        names = _NAMES[config.storage]
        self.router = Linear(
            parameters, {f"{prefix}.{names.router}": count}, size, bias=config.router_bias
        )
        self.gate_up_EOI = parameters.empty(count, 2 * width, size)
        self.down_EOI = parameters.empty(count, size, width)
        self.gate_up_bias_EO: Tensor | None = None
        self.down_bias_EO: Tensor | None = None
        if config.expert_bias:
            self.gate_up_bias_EO = parameters.empty(count, 2 * width)
            self.down_bias_EO = parameters.empty(count, size)
        if config.storage == "gpt_oss":
            self._fill_transposed(parameters, f"{prefix}.experts")
        elif config.storage == "granite":
            parameters.fill(f"{prefix}.input_linear.weight", self.gate_up_EOI)
            parameters.fill(f"{prefix}.output_linear.weight", self.down_EOI)
        else:
            self._fill_single(parameters, f"{prefix}.{names.experts}", names)

    def __call__(self, x_TH: Tensor) -> Tensor:
        weights_TA, experts_TA = self.route(x_TH)
        order_P = experts_TA.flatten().argsort(stable=True)
        tokens_P = order_P // self.config.top_k
        counts = experts_TA.flatten().bincount(minlength=self.config.num_experts)
        out_PH = self.grouped(x_TH.index_select(0, tokens_P), counts.tolist())
        out_PH *= weights_TA.flatten().index_select(0, order_P)[:, None]
        return torch.zeros_like(x_TH).index_add_(0, tokens_P, out_PH.to(x_TH.dtype))

    def route(self, x_TH: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and expert indices of every token, ``[T, A]`` each; weights in float32."""
        logits_TE = self.router(x_TH).float()
        if self.config.scoring == "chosen":
            best_TA, experts_TA = logits_TE.topk(self.config.top_k, dim=-1)
            return best_TA.softmax(dim=-1), experts_TA
        weights_TA, experts_TA = logits_TE.softmax(dim=-1).topk(self.config.top_k, dim=-1)
        if self.config.normalize:
            weights_TA = weights_TA / weights_TA.sum(dim=-1, keepdim=True)
        return weights_TA, experts_TA

    def grouped(self, x_PH: Tensor, counts: list[int]) -> Tensor:
        """Outputs ``[P, H]`` in float32; the first ``counts[0]`` rows are expert 0's, and so on."""
        out_PH = torch.empty(x_PH.shape, dtype=torch.float32, device=x_PH.device)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                rows = slice(start, start + count)
                out_PH[rows] = self._expert(expert, x_PH[rows])
                start += count
        return out_PH

    def _expert(self, expert: int, x_TH: Tensor) -> Tensor:
        gate_up_bias = None if self.gate_up_bias_EO is None else self.gate_up_bias_EO[expert]
        down_bias = None if self.down_bias_EO is None else self.down_bias_EO[expert]
        gate, up = F.linear(x_TH, self.gate_up_EOI[expert], gate_up_bias).chunk(2, dim=-1)
        hidden_TI = activate(self.config.activation, gate, up)
        return F.linear(hidden_TI, self.down_EOI[expert], down_bias)

    def _fill_single(self, parameters: Parameters, prefix: str, names: _Names) -> None:
        """One tensor for every projection of every expert."""
        width = self.config.intermediate_size
        for expert in range(self.config.num_experts):
            one = f"{prefix}.{expert}"
            gate_up_OI = self.gate_up_EOI[expert]
            parameters.fill(f"{one}.{names.gate}.weight", gate_up_OI[:width])
            parameters.fill(f"{one}.{names.up}.weight", gate_up_OI[width:])
            parameters.fill(f"{one}.{names.down}.weight", self.down_EOI[expert])

    def _fill_transposed(self, parameters: Parameters, prefix: str) -> None:
        """All experts in one tensor, input axis first, gate and up interleaved."""
        count, doubled, size = self.gate_up_EOI.shape
        width = doubled // 2
        parameters.fill(
            f"{prefix}.gate_up_proj",
            self.gate_up_EOI.view(count, 2, width, size).permute(0, 3, 2, 1),
            shape=(count, size, doubled),
        )
        parameters.fill(f"{prefix}.down_proj", self.down_EOI.transpose(1, 2))
        if self.gate_up_bias_EO is not None and self.down_bias_EO is not None:
            parameters.fill(
                f"{prefix}.gate_up_proj_bias",
                self.gate_up_bias_EO.view(count, 2, width).transpose(1, 2),
                shape=(count, doubled),
            )
            parameters.fill(f"{prefix}.down_proj_bias", self.down_bias_EO)


@dataclass(frozen=True, slots=True)
class _Names:
    router: str
    experts: str = "experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


_NAMES: dict[ExpertStorage, _Names] = {
    "mixtral": _Names("gate", gate="w1", up="w3", down="w2"),
    "qwen3_moe": _Names("gate"),
    "gpt_oss": _Names("router"),
    "granite": _Names("router.layer"),
}
