"""Adapters in the kernel's form: their low-rank matrices, packed in the order of the projections.

Owns the order of columns that the kernel expects. Knows neither steps nor files.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.engine.adapters.bank import LinearDelta, ThinPair
from quire.engine.cpu.model_spec import AdapterPair
from quire.engine.cpu.packed_matrix import PANEL_COLUMNS, PackedMatrix, WeightType
from quire.engine.cpu.team import Team
from quire.engine.layers.linear import Linear


class PackedAdapters:
    """The adapters' matrices at one projection: ``pairs``, one for each adapter of the engine.
    Valid as long as this object lives; the PyTorch copies become empty.

    ``gated``: the projection's columns are packed as alternating blocks of gate and up.
    """

    def __init__(
        self, linear: Linear, num_adapters: int, team: Team, weight_type: WeightType, *, gated: bool
    ) -> None:
        delta = linear.delta
        assert isinstance(delta, LinearDelta)
        self._matrices: list[PackedMatrix] = []
        self.pairs = (AdapterPair * num_adapters)()
        for adapter, pair in delta.pairs.items():
            down_RI, up_OR = _pairs_in_order(pair, gated)
            down = PackedMatrix(team, down_RI, weight_type)
            up = PackedMatrix(team, up_OR, weight_type)
            self._matrices += (down, up)
            self.pairs[adapter] = AdapterPair(down.view, up.view)
        linear.delta = None


def _pairs_in_order(pair: ThinPair, gated: bool) -> tuple[Tensor, Tensor]:
    if not gated:
        return pair.down_RI, pair.up_OR
    half = PANEL_COLUMNS // 2
    gate_OR, up_OR = pair.up_OR.chunk(2)
    width, rank = gate_OR.shape
    num_panels = -(-width // half)
    packed = torch.zeros(num_panels, 2, half, rank, dtype=gate_OR.dtype)
    for index, rows_OR in enumerate((gate_OR, up_OR)):
        padded = torch.zeros(num_panels * half, rank, dtype=gate_OR.dtype)
        padded[:width] = rows_OR
        packed[:, index] = padded.view(num_panels, half, rank)
    return pair.down_RI, packed.view(-1, rank)
