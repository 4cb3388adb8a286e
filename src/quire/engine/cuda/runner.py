"""The CUDA backend's runner: the PyTorch backend's, with a message's decode loop on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionBackend, AttentionRows, DecodePlan
from quire.engine.attention.scored_rows import AttentionMass
from quire.engine.cuda.decode_loop import DecodeLoop, RecordedDecodePlan
from quire.engine.cuda.kv_pool import CudaKVPool
from quire.engine.cuda.upload import upload
from quire.engine.embed_slots import EmbedSlots
from quire.engine.model_runner import FusedRows, FusedTokens
from quire.engine.models.decoder import CausalLM
from quire.engine.torch_runner import I64, TorchRunner


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make it the thread's current device. PyTorch uses the device of a tensor, but Triton's
    launches, recordings and FlashInfer use the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class CudaRunner(TorchRunner):
    """``ModelRunner`` on a device. ``loop`` is None where decode steps cannot be recorded."""

    serves_scores = False
    """Not implemented for this cache layout."""

    def __init__(
        self,
        model: CausalLM,
        pool: CudaKVPool,
        attention: AttentionBackend,
        embeds: EmbedSlots,
        device: torch.device,
        loop: DecodeLoop | None,
    ) -> None:
        super().__init__(model, pool, attention, embeds, device)
        self._loop = loop

    def run_rows(
        self,
        rows: AttentionRows,
        tokens_T: I64,
        embeds_T: I32,
        mass: AttentionMass | None = None,
    ) -> Tensor:
        with on_device(self._device):
            return super().run_rows(rows, tokens_T, embeds_T, mass)

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> DecodePlan:
        if self._loop is None:
            return super().plan_decode(rows, num_steps)
        return self._loop.plan_decode(rows)

    def run_decode(self, plan: DecodePlan, tokens_R: I64, positions_R: I32, slots_R: I64) -> Tensor:
        with on_device(self._device):
            if self._loop is not None and isinstance(plan, RecordedDecodePlan) and plan.is_recorded:
                self.pool.positions_AS[:, slots_R] = positions_R
                return self._loop.step(tokens_R, positions_R, slots_R)
            return super().run_decode(plan, tokens_R, positions_R, slots_R)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        known_NV = None if self._loop is None else self._loop.logits_of(hidden_NH)
        if known_NV is not None:
            return known_NV
        with on_device(self._device):
            return super().logits(hidden_NH)

    def to_device(self, array: NDArray[np.integer]) -> Tensor:
        """An index tensor of a host array, copied without waiting for the device's work, as a copy
        from pageable memory would."""
        return upload({"array": np.asarray(array, np.int64)}, self._device)["array"]

    def decode_fused(self, rows: FusedRows) -> FusedTokens | None:
        """The loop on the device; None if the rows do not fit its memory."""
        if self._loop is None:
            return None
        with on_device(self._device):
            return self._loop.run(rows)
