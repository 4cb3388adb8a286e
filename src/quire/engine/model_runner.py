"""What the step loop asks of whatever runs the model over one step's tokens.

A runner owns the model's weights, the cache and how both lie in memory. It knows nothing of
sequences, commands or sampling. ``quire.engine.torch_runner`` defines the results; others must
equal it.

Shapes: T new tokens, R decoding rows, N chosen tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionRows, DecodePlan
from quire.engine.embed_slots import EmbedSlots
from quire.engine.kv_cache.pool import KVPool

I64 = NDArray[np.int64]


class ModelRunner(Protocol):
    """One model with its cache and embed slots, on one device, for the life of its engine."""

    @property
    def pool(self) -> KVPool: ...

    @property
    def embeds(self) -> EmbedSlots: ...

    def embed(self, tokens_N: I64) -> Tensor:
        """Input embeddings ``[N, H]``."""
        ...

    def run_rows(self, rows: AttentionRows, tokens_T: I64, embeds_T: I32) -> Tensor:
        """Hidden states ``[T, H]`` of ragged rows; writes their K, V and positions.

        ``embeds_T``: embed slot that replaces the token's embedding, or -1.
        """
        ...

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> DecodePlan:
        """Plan up to ``num_steps`` steps. ``rows`` has one token per row, that of the first step;
        call ``advance`` before each step, the first included."""
        ...

    def run_decode(self, plan: DecodePlan, tokens_R: I64, positions_R: I32, slots_R: I64) -> Tensor:
        """Hidden states ``[R, H]`` of one token per row, under a plan that was advanced to it."""
        ...

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Logits ``[N, V]`` in float32."""
        ...

    def to_device(self, array: NDArray[np.integer]) -> Tensor:
        """An index tensor (int64) of a host array, where the runner's tensors are."""
        ...
