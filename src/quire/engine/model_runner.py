"""Runs the model over one step's tokens: device inputs, cache slots, attention plan.

Knows nothing of sequences, commands or sampling.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionBackend, AttentionPlan, AttentionRows
from quire.engine.embed_slots import EmbedSlots
from quire.engine.kv_cache.pool import KVPool
from quire.engine.layers.attention import GroupStep, ModelStep
from quire.engine.models.decoder import CausalLM

I64 = NDArray[np.int64]


class ModelRunner:
    """One model with its cache pool, attention backend and embed slots, on one device."""

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        attention: AttentionBackend,
        embeds: EmbedSlots,
        device: torch.device,
    ) -> None:
        self.model = model
        self.pool = pool
        self.attention = attention
        self.embeds = embeds
        self._device = device

    def run_rows(self, rows: AttentionRows, tokens_T: I64, embeds_T: I32) -> Tensor:
        """Hidden states ``[T, H]`` of ragged rows; writes their K, V and positions.

        ``embeds_T``: embed slot that replaces the token's embedding, or -1.
        """
        self.pool.positions_AS[:, rows.slots] = rows.positions
        x_TH = self.model.embed(self.to_device(tokens_T))
        given = np.flatnonzero(embeds_T >= 0)
        if len(given):
            x_TH.index_copy_(0, self.to_device(given), self.embeds.read(embeds_T[given]))
        return self._forward(x_TH, rows.positions, rows.slots, self.attention.plan(rows))

    def run_decode(
        self, plan: AttentionPlan, tokens_R: I64, positions_R: I32, slots_R: I64
    ) -> Tensor:
        """Hidden states ``[R, H]`` of one token per row, under a plan that was advanced to it."""
        self.pool.positions_AS[:, slots_R] = positions_R
        return self._forward(self.model.embed(self.to_device(tokens_R)), positions_R, slots_R, plan)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        return self.model.logits(hidden_NH)

    def to_device(self, array: NDArray[np.integer]) -> Tensor:
        """An index tensor (int64) of a host array."""
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(self._device)

    def _forward(self, x_TH: Tensor, positions_T: I32, slots_T: I64, plan: AttentionPlan) -> Tensor:
        cos_T1D, sin_T1D = self.model.rotary.at(self.to_device(positions_T))
        step = ModelStep(
            cos_T1D=cos_T1D,
            sin_T1D=sin_T1D,
            caches=self.pool.layers,
            groups=[GroupStep(self.to_device(slots_T), plan)],
        )
        return self.model.forward(x_TH, step)
