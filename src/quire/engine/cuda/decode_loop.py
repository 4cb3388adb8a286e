"""The decode loop of a message: recorded steps, one wait for the device at the end.

A step is recorded twice for every bucket: up to the logits, for rows whose sampler runs between the
recordings, and as a whole, for rows that all take the best token.

Shapes: B rows of a bucket, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.engine.cuda.decode_state import DecodeState
from quire.engine.cuda.graphs import Buckets, Recorder, Work
from quire.engine.cuda.static_attention import StaticAttention
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.layers.attention import GroupStep, ModelStep
from quire.engine.model_runner import FusedRows, FusedTokens
from quire.engine.models.decoder import CausalLM


class DecodeLoop:
    """Owns the recordings. ``state`` and ``attention`` are the memory that they read."""

    def __init__(
        self,
        model: CausalLM,
        caches: list[LayerCache],
        vocab_size: int,
        state: DecodeState,
        attention: StaticAttention,
        recorder: Recorder,
        sizes: Sequence[int],
    ) -> None:
        self._model, self._caches = model, caches
        self._state, self._attention = state, attention
        device = state.tokens_B.device
        self._logits_BV = torch.zeros(state.max_rows, vocab_size, device=device)
        self._forward = Buckets("decode step", sizes, self._forward_work, recorder)
        self._greedy = Buckets("greedy decode step", sizes, self._greedy_work, recorder)

    def run(self, rows: FusedRows) -> FusedTokens | None:
        """Decode; None if the rows, their steps or their pages are too many for the memory."""
        size = self._forward.size_for(len(rows.tokens_R))
        if size is None or not self._state.holds(rows) or not self._attention.begin(rows):
            return None
        self._state.begin(rows, size)
        common = rows.sampling.common
        all_best = common is not None and bool(common.greedy.all())
        num_steps = min(rows.num_steps, int(rows.steps_R.max()))
        for _ in range(num_steps):
            if all_best and not rows.min_steps_R.any():
                self._greedy.replay(size)
            else:
                self._sampled_step(rows, size)
        return self._state.finish(rows, num_steps)

    def _sampled_step(self, rows: FusedRows, size: int) -> None:
        self._forward.replay(size)
        num_rows = len(rows.tokens_R)
        logits_RV = self._logits_BV[:num_rows]
        if rows.min_steps_R.any():
            logits_RV = self._state.without_early_stops(logits_RV)
        positions_R = self._state.sampled_positions(num_rows)
        self._state.settle(*rows.sampling.choose(logits_RV, positions_R))

    def _forward_work(self, size: int) -> Work:
        state, plan = self._state, self._attention.plan(size)

        def work() -> None:
            step = ModelStep(
                rotations=self._model.rotations(state.positions_B[:size].long()),
                caches=self._caches,
                groups=[GroupStep(state.slots_B[:size], plan)],
            )
            hidden_BH = self._model.forward(self._model.embed(state.tokens_B[:size]), step)
            self._logits_BV[:size] = self._model.logits(hidden_BH)

        return work

    def _greedy_work(self, size: int) -> Work:
        forward = self._forward_work(size)
        self._state.rest()  # warming up makes steps, and the memory holds only so many

        def work() -> None:
            forward()
            self._state.settle(*take_best(self._logits_BV[:size]))

        return work


def take_best(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of each row, ties by lower id; none where it is not a finite number."""
    best_R, tokens_R = logits_RV.max(dim=-1)
    return tokens_R, torch.isfinite(best_R)


__all__ = ["DecodeLoop", "take_best"]
