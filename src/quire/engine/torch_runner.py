"""The PyTorch backend's runner: device inputs, cache slots, an attention plan, the layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32, AdvanceRows
from quire.engine.adapters.bank import AdapterBank
from quire.engine.adapters.decode_plan import AdaptedDecodePlan
from quire.engine.attention.backend import (
    AttentionBackend,
    AttentionPlan,
    AttentionRows,
    DecodePlan,
)
from quire.engine.attention.scored_rows import AttentionMass, ScoringPlan
from quire.engine.embed_slots import EmbedSlots
from quire.engine.exchange.layer_progress import LayerProgress, ThreadProgress
from quire.engine.kv_cache.torch_pool import TorchKVPool
from quire.engine.layers.attention import GroupStep, ModelStep
from quire.engine.model_runner import F32, AdvanceResult, FusedRows, FusedTokens, SequenceState
from quire.engine.models.decoder import CausalLM
from quire.engine.sampling.plan import CommonParameters

I64 = NDArray[np.int64]


class TorchRunner:
    """``ModelRunner`` over a ``CausalLM`` and an attention backend, on any PyTorch device."""

    serves_scores = True

    def __init__(
        self,
        model: CausalLM,
        pool: TorchKVPool,
        attention: AttentionBackend,
        embeds: EmbedSlots,
        device: torch.device,
        adapters: AdapterBank | None = None,
    ) -> None:
        self.pool = pool
        self.embeds = embeds
        self._model = model
        self._attention = attention
        self._device = device
        self._adapters = adapters
        self._progress: LayerProgress | None = None
        self._progress_base = 0

    @property
    def details(self) -> dict[str, Any]:
        return {"num_threads": torch.get_num_threads()}

    def new_progress(self) -> ThreadProgress:
        return ThreadProgress()

    def watch(self, progress: LayerProgress | None, base: int) -> None:
        """See ``LayerCounter``."""
        self._progress, self._progress_base = progress, base

    def _layer_written(self, num_layers: int) -> None:
        if self._progress is not None:
            self._progress.reach(self._progress_base + num_layers)

    def embed(self, tokens_N: I64) -> Tensor:
        """Input embeddings ``[N, H]``."""
        return self._model.embed(self.to_device(tokens_N))

    def run_rows(
        self,
        rows: AttentionRows,
        tokens_T: I64,
        embeds_T: I32,
        mass: AttentionMass | None = None,
    ) -> Tensor:
        """Hidden states ``[T, H]`` of ragged rows; writes their K, V and positions.

        ``embeds_T``: embed slot that replaces the token's embedding, or -1.
        """
        self.pool.positions_AS[:, rows.slots] = rows.positions
        x_TH = self.embed(tokens_T)
        given = np.flatnonzero(embeds_T >= 0)
        if len(given):
            x_TH.index_copy_(0, self.to_device(given), self.embeds.read(embeds_T[given]))
        if self._adapters is not None:
            self._adapters.begin(rows.adapters, rows.row_starts, self._device)
        plan: AttentionPlan = self._attention.plan(rows)
        if mass is not None:
            plan = ScoringPlan(plan, mass)
        return self._forward(x_TH, rows.positions, rows.slots, plan)

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> DecodePlan:
        plan = self._attention.plan_decode(rows, num_steps)
        return plan if rows.adapters is None else AdaptedDecodePlan(plan, rows.adapters)

    def run_decode(self, plan: DecodePlan, tokens_R: I64, positions_R: I32, slots_R: I64) -> Tensor:
        """Hidden states ``[R, H]`` of one token per row, under a plan whose ``advance`` was called
        for this step."""
        self.pool.positions_AS[:, slots_R] = positions_R
        if self._adapters is not None:
            adapters = plan.adapters_R if isinstance(plan, AdaptedDecodePlan) else None
            self._adapters.begin(adapters, np.arange(len(tokens_R) + 1), self._device)
        return self._forward(self.embed(tokens_R), positions_R, slots_R, plan)

    def decode_fused(self, rows: FusedRows) -> FusedTokens | None:
        return None

    def advance(
        self, rows: AdvanceRows, num_steps: int, state: SequenceState
    ) -> AdvanceResult | None:
        return None

    def logits(self, hidden_NH: Tensor) -> Tensor:
        return self._model.logits(hidden_NH)

    def choose(self, hidden_NH: Tensor, samplers: CommonParameters, positions_N: I64) -> I64 | None:
        return None

    def best(self, hidden_NH: Tensor, k: int) -> tuple[I32, F32] | None:
        return None

    def to_device(self, array: NDArray[np.integer]) -> Tensor:
        """An index tensor (int64) of a host array."""
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(self._device)

    def _forward(self, x_TH: Tensor, positions_T: I32, slots_T: I64, plan: AttentionPlan) -> Tensor:
        step = ModelStep(
            rotations=self._model.rotations(self.to_device(positions_T)),
            caches=self.pool.layers,
            groups=[GroupStep(self.to_device(slots_T), plan)],
            on_layer=None if self._progress is None else self._layer_written,
        )
        return self._model.forward(x_TH, step)
