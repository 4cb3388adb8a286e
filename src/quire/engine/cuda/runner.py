"""The CUDA backend's runner: that of the PyTorch backend with a message's decode loop fused."""

from __future__ import annotations

import torch

from quire.engine.attention.backend import AttentionBackend
from quire.engine.cuda.decode_loop import DecodeLoop
from quire.engine.cuda.kv_pool import CudaKVPool
from quire.engine.embed_slots import EmbedSlots
from quire.engine.model_runner import FusedRows, FusedTokens
from quire.engine.models.decoder import CausalLM
from quire.engine.torch_runner import TorchRunner


class CudaRunner(TorchRunner):
    """``ModelRunner`` on a device. ``loop`` is None where decode steps cannot be recorded."""

    serves_scores = False  # its cache does not lie as the sums read it

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

    def decode_fused(self, rows: FusedRows) -> FusedTokens | None:
        """The loop on the device; None if the rows do not fit its memory."""
        return None if self._loop is None else self._loop.run(rows)


__all__ = ["CudaRunner"]
