"""The decode loop of a message: recorded steps, and one wait for the device at the end.

A step is recorded in two forms for every bucket: up to the logits, for rows whose sampler runs
outside of the recording, and as a whole, for batches in which all rows take the best token. Rows
that need the host in every step (grammars, stop strings, penalties, log probabilities) use the
first form step by step.

Shapes: B rows of a bucket, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionRows
from quire.engine.cuda.decode_state import DecodeState
from quire.engine.cuda.graphs import GraphBuckets, GraphRecorder, Work
from quire.engine.cuda.page_entries import PageEntries
from quire.engine.cuda.static_attention import StaticAttention
from quire.engine.cuda.triton_attention import TritonDecodePlan
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.layers.attention import GroupStep, ModelStep
from quire.engine.model_runner import FusedRows, FusedTokens
from quire.engine.models.decoder import CausalLM

I64 = NDArray[np.int64]


class DecodeLoop:
    """Owns the recordings. ``state`` and ``attention`` hold the fixed memory that they read."""

    def __init__(
        self,
        model: CausalLM,
        caches: list[LayerCache],
        vocab_size: int,
        state: DecodeState,
        attention: StaticAttention,
        recorder: GraphRecorder,
        sizes: Sequence[int],
    ) -> None:
        self._model, self._caches = model, caches
        self._state, self._attention = state, attention
        device = state.tokens_B.device
        self._logits_BV = torch.zeros(state.max_rows, vocab_size, device=device)
        self._hidden: dict[int, Tensor] = {}
        self._last: tuple[Tensor, Tensor] | None = None
        self._forward = GraphBuckets("decode step", sizes, self._forward_work, recorder)
        self._greedy = GraphBuckets("greedy decode step", sizes, self._greedy_work, recorder)

    def run(self, rows: FusedRows) -> FusedTokens | None:
        """Decode; None if the rows, their steps or their pages exceed the memory."""
        size = self._forward.size_for(len(rows.tokens_R))
        if size is None or not self._state.holds(rows) or not self._attention.begin(rows):
            return None
        self._state.begin(rows, size)
        self._last = None  # its logits are overwritten
        common = rows.sampling.common
        all_best = common is not None and bool(common.greedy.all())
        num_steps = min(rows.num_steps, int(rows.steps_R.max()))
        for _ in range(num_steps):
            if all_best and not rows.min_steps_R.any():
                self._greedy.replay(size)
            else:
                self._sampled_step(rows, size)
        return self._state.finish(rows, num_steps)

    def plan_decode(self, rows: AttentionRows) -> RecordedDecodePlan:
        """A plan of steps whose tokens the host chooses."""
        return RecordedDecodePlan(self, self._attention, rows)

    def holds(self, num_rows: int) -> bool:
        return self._forward.size_for(num_rows) is not None

    def step(self, tokens_R: I64, positions_R: I32, slots_R: I64) -> Tensor:
        """Hidden states ``[R, H]`` of rows that were planned with the attention, valid until the
        next step."""
        num_rows = len(tokens_R)
        size = self._forward.size_for(num_rows)
        assert size is not None, f"{num_rows} rows are more than are recorded"
        self._state.place(tokens_R, positions_R, slots_R, size)
        self._forward.replay(size)
        hidden_RH = self._hidden[size][:num_rows]
        self._last = hidden_RH, self._logits_BV[:num_rows]
        return hidden_RH

    def logits_of(self, hidden_RH: Tensor) -> Tensor | None:
        """The logits of the last step, if ``hidden_RH`` are its hidden states."""
        return self._last[1] if self._last is not None and self._last[0] is hidden_RH else None

    def _sampled_step(self, rows: FusedRows, size: int) -> None:
        self._forward.replay(size)
        num_rows = len(rows.tokens_R)
        logits_RV = self._logits_BV[:num_rows]
        if rows.min_steps_R.any():
            logits_RV = self._state.without_early_stops(logits_RV)
        positions_R = self._state.sampled_positions(num_rows)
        self._state.settle(*rows.sampling.choose(logits_RV, positions_R))

    def _forward_work(self, size: int) -> Work:
        forward = self._logits_work(size)

        def work() -> None:
            self._hidden[size] = forward()  # every replay writes to this tensor

        return work

    def _greedy_work(self, size: int) -> Work:
        forward = self._logits_work(size)
        self._state.rest()  # warm-up runs count steps, and the memory holds a limited number

        def work() -> None:
            forward()
            self._state.settle_best(*take_best(self._logits_BV[:size]))

        return work

    def _logits_work(self, size: int) -> Callable[[], Tensor]:
        """A forward pass up to the logits; returns the hidden states."""
        state, plan = self._state, self._attention.plan(size)

        def work() -> Tensor:
            step = ModelStep(
                rotations=self._model.rotations(state.positions_B[:size].long()),
                caches=self._caches,
                groups=[GroupStep(state.slots_B[:size], plan)],
            )
            hidden_BH = self._model.forward(self._model.embed(state.tokens_B[:size]), step)
            self._logits_BV[:size] = self._model.logits(hidden_BH)
            return hidden_BH

        return work


class RecordedDecodePlan(TritonDecodePlan):
    """``DecodePlan`` whose steps are replays, if the rows fit the loop's memory."""

    def __init__(self, loop: DecodeLoop, attention: StaticAttention, rows: AttentionRows) -> None:
        super().__init__(attention.backend, rows)
        self._loop, self._attention = loop, attention
        self.is_recorded = False

    def _begin(self, rows: AttentionRows, entries: PageEntries) -> None:
        self.is_recorded = self._loop.holds(rows.num_rows) and self._attention.take(
            rows, entries, num_steps=1
        )
        if not self.is_recorded:
            super()._begin(rows, entries)


def take_best(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of each row, ties by lower id, and its logit, which is not finite if no token
    can be chosen."""
    best_R, tokens_R = logits_RV.max(dim=-1)
    return tokens_R, best_R
