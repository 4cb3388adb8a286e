"""An engine's adapters on its device, attached to the projections of a PyTorch model.

Each projection that an adapter modifies gets a ``LinearDelta``; the others cost nothing. Rows of
one step are grouped by adapter, and each group adds two low-rank products to the projection's
output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.batch import I32
from quire.core.engine_info import AdapterInfo
from quire.engine.adapters.peft_directory import AdapterWeights, ModuleShape
from quire.engine.adapters.token_groups import I64, group_tokens
from quire.engine.layers.linear import Linear
from quire.engine.layers.mlp import GatedMLP
from quire.engine.models.decoder import CausalLM, Decoder


@dataclass(slots=True)
class StepTokens:
    """The groups of the current step, shared by all deltas: (adapter, its tokens or all)."""

    groups: list[tuple[int, Tensor | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class ThinPair:
    """One adapter's products at one projection, scaling included. Fused projections are
    concatenated.

    ``down_RI`` stacks the parts' matrices; ``up_OR`` is block-diagonal.
    """

    down_RI: Tensor
    up_OR: Tensor


class LinearDelta:
    """Implements ``quire.engine.layers.linear.ProjectionDelta``; ``pairs`` by adapter."""

    def __init__(self, step: StepTokens, pairs: dict[int, ThinPair]) -> None:
        self._step = step
        self.pairs = pairs

    def add_to(self, y_TO: Tensor, x_TI: Tensor) -> Tensor:
        for adapter, tokens in self._step.groups:
            pair = self.pairs.get(adapter)
            if pair is None:
                continue
            if tokens is None:
                y_TO.addmm_(F.linear(x_TI, pair.down_RI), pair.up_OR.T)
            else:
                thin = F.linear(x_TI.index_select(0, tokens), pair.down_RI)
                y_TO.index_add_(0, tokens, F.linear(thin, pair.up_OR))
        return y_TO


class AdapterBank:
    """All adapters of one engine. ``infos``: in the order of the indices that messages use."""

    def __init__(self, infos: tuple[AdapterInfo, ...], step: StepTokens) -> None:
        self.infos = infos
        self._step = step

    def begin(self, adapters_R: I32 | None, row_starts: I64, device: torch.device) -> None:
        """Set the rows of the coming forward pass; None: no row has an adapter."""
        groups = [] if adapters_R is None else group_tokens(adapters_R, row_starts)
        self._step.groups = [
            (
                group.adapter,
                None if group.tokens is None else torch.from_numpy(group.tokens).to(device),
            )
            for group in groups
        ]


def module_shapes(model: CausalLM) -> dict[str, ModuleShape]:
    """The projections of ``model`` that take adapters, by their names in its checkpoint."""
    return {
        name: ModuleShape(size, linear.weight_OI.shape[1])
        for linear in adaptable(model)
        for name, size in linear.parts.items()
    }


def attach_adapters(
    adapters: Sequence[AdapterWeights], model: CausalLM, device: torch.device, dtype: torch.dtype
) -> AdapterBank | None:
    """Attach ``adapters`` to the projections of ``model``; returns None if there are none."""
    if not adapters:
        return None
    step = StepTokens()
    for linear in adaptable(model):
        pairs = {
            index: pair
            for index, adapter in enumerate(adapters)
            if (pair := _pair(linear, adapter, device, dtype)) is not None
        }
        if pairs:
            linear.delta = LinearDelta(step, pairs)
    infos = [
        AdapterInfo(
            name=adapter.name, digest=adapter.digest, rank=adapter.rank, problem=adapter.problem
        )
        for adapter in adapters
    ]
    return AdapterBank(tuple(infos), step)


def adaptable(model: CausalLM) -> Iterator[Linear]:
    """The projections that take adapters: those of attention and of MLPs, not of experts."""
    if not isinstance(model, Decoder):
        return
    for layer in model.layers:
        yield layer.attention.qkv
        yield layer.attention.output
        if isinstance(layer.mlp, GatedMLP):
            yield layer.mlp.gate_up
            yield layer.mlp.down


def _pair(
    linear: Linear, adapter: AdapterWeights, device: torch.device, dtype: torch.dtype
) -> ThinPair | None:
    parts = [adapter.modules.get(name) for name in linear.parts]
    rank = sum(part.rank for part in parts if part is not None)
    if not rank:
        return None
    num_outputs, num_inputs = linear.weight_OI.shape
    down_RI = torch.empty(rank, num_inputs)
    up_OR = torch.zeros(num_outputs, rank)
    row = column = 0
    for part, (name, size) in zip(parts, linear.parts.items(), strict=True):
        if part is not None:
            down_RI[column : column + part.rank] = part.down_RI
            scaled_OR = linear.in_order(name, part.up_OR * part.scaling)
            up_OR[row : row + size, column : column + part.rank] = scaled_OR
            column += part.rank
        row += size
    return ThinPair(down_RI.to(device, dtype), up_OR.to(device, dtype))
