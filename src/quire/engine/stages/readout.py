"""Stage 4 of a message: tokens and distributions after embed slots.

Owns validation of these rows and the plan of their samplers. ``sampling`` defines how tokens are
chosen; a runner that can choose itself is preferred.

Shapes: M valid rows, H hidden size, K best tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.batch import DistRows, SampleRows, no_i32
from quire.core.batch_result import BatchResult
from quire.core.decoding import SamplerSpec
from quire.core.errors import InvalidArgument, QuireError
from quire.engine.embed_slots import EmbedSlots, TokenSlots
from quire.engine.failures import RowFailures, check_message
from quire.engine.model_runner import ModelRunner
from quire.engine.sampling.distribution import best_of_logits
from quire.engine.sampling.parameters import check_sampler
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.registry import installed
from quire.engine.sampling.table import SamplerTable, SamplingRow

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class ReadoutStage:
    """Samples and computes distributions from embed slots."""

    def __init__(
        self,
        runner: ModelRunner,
        embeds: EmbedSlots,
        token_slots: TokenSlots,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._runner = runner
        self._embeds = embeds
        self._token_slots = token_slots
        self._vocab_size = vocab_size
        self._device = device
        self._last: tuple[list[SamplerSpec], I64, SamplingPlan] | None = None

    def dists(self, rows: DistRows, result: BatchResult, failures: RowFailures) -> None:
        check_message(len(rows.embeds) == len(rows.top_k), "dist arrays differ in length")
        ok = self._embeds.contains(rows.embeds) & (rows.top_k >= 1)
        for index in np.flatnonzero(~ok).tolist():
            error = InvalidArgument(
                f"the best {int(rows.top_k[index])} tokens after embed {int(rows.embeds[index])}: "
                f"ask for at least one, of an embed below {self._embeds.num_embeds}"
            )
            failures.add("dists", index, error)
        counts = np.where(ok, np.minimum(rows.top_k, self._vocab_size), 0)
        result.dist_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        if not ok.any():
            return
        ids_MK, probs_MK = self._best(rows.embeds[ok], int(counts.max()))
        wanted = np.arange(int(counts.max())) < counts[ok][:, None]
        result.dist_ids = ids_MK[wanted].astype(np.int32)
        result.dist_probs = probs_MK[wanted]

    def _best(self, embeds_M: NDArray[np.int32], k: int) -> tuple[NDArray[np.integer], F32]:
        hidden_MH = self._embeds.read(embeds_M)
        found = self._runner.best(hidden_MH, k)
        if found is not None:
            return found
        ids_MK, probs_MK = best_of_logits(self._runner.logits(hidden_MH), k)
        return ids_MK.cpu().numpy(), probs_MK.cpu().numpy()

    def samples(self, rows: SampleRows, result: BatchResult, failures: RowFailures) -> None:
        result.samples = np.full(len(rows.embeds), -1, np.int32)
        check_message(
            len(rows.histories) in (0, len(rows.samplers)), "histories are not one per sampler"
        )
        good_M = self._good_rows(rows, failures)
        if not len(good_M):
            return
        plan = self._plan(rows, rows.sampler_index[good_M].astype(np.int64))
        tokens_M, chosen_M = self._choose(
            rows.embeds[good_M], plan, rows.positions[good_M].astype(np.int64)
        )
        for index in good_M[~chosen_M].tolist():
            failures.add("samples", index, _nothing_to_sample())
        result.samples[good_M[chosen_M]] = tokens_M[chosen_M]
        slots_M = rows.token_slots[good_M]
        kept_M = chosen_M & (slots_M >= 0)
        self._token_slots.write(slots_M[kept_M], tokens_M[kept_M])

    def _choose(
        self, embeds_M: NDArray[np.int32], plan: SamplingPlan, positions_M: I64
    ) -> tuple[I64, NDArray[np.bool_]]:
        hidden_MH = self._embeds.read(embeds_M)
        if plan.common is not None:
            tokens_M = self._runner.choose(hidden_MH, plan.common, positions_M)
            if tokens_M is not None:
                return tokens_M, tokens_M >= 0
        return plan.sample(self._runner.logits(hidden_MH), positions_M)

    def _good_rows(self, rows: SampleRows, failures: RowFailures) -> I64:
        """The rows that can be sampled; the others are reported."""
        which = rows.sampler_index
        check_message(len(which) == len(rows.embeds), "sample arrays differ in length")
        in_range = bool(((which >= 0) & (which < len(rows.samplers))).all())
        check_message(in_range, "a row names a sampler that is not there")
        faults = self._faults(rows.samplers)
        ok = self._embeds.contains(rows.embeds) & (rows.token_slots < self._token_slots.num_slots)
        for index in np.flatnonzero(~ok).tolist():
            error = InvalidArgument(
                f"sample after embed {int(rows.embeds[index])} into token slot "
                f"{int(rows.token_slots[index])}: there are {self._embeds.num_embeds} embeds and "
                f"{self._token_slots.num_slots} token slots"
            )
            failures.add("samples", index, faults.get(int(which[index]), error))
        if faults:
            for index in np.flatnonzero(ok & np.isin(which, list(faults))).tolist():
                failures.add("samples", index, faults[int(which[index])])
                ok[index] = False
        return np.flatnonzero(ok)

    def _faults(self, samplers: list[SamplerSpec]) -> dict[int, QuireError]:
        """The errors of samplers, by index."""
        faults: dict[int, QuireError] = {}
        if self._last is not None and self._last[0] == samplers:
            return faults
        for number, sampler in enumerate(samplers):
            try:
                check_sampler(sampler, self._vocab_size)
            except QuireError as error:
                faults[number] = error
        return faults

    def _plan(self, rows: SampleRows, which_M: I64) -> SamplingPlan:
        """A plan for rows with these samplers, kept because loops ask for the same samplers in
        every step."""
        if not rows.histories:
            last = self._last
            if last and last[0] == rows.samplers and np.array_equal(last[1], which_M):
                return last[2]
            plan = self._shared_plan(rows.samplers, which_M)
            if plan.common is not None:
                self._last = rows.samplers, which_M, plan
                return plan
        histories = rows.histories or [no_i32()] * len(rows.samplers)
        apart = [
            SamplingRow(rows.samplers[which], histories[which], histories[which])
            for which in which_M.tolist()
        ]
        return SamplingPlan(apart, self._vocab_size, self._device)

    def _shared_plan(self, samplers: list[SamplerSpec], which_M: I64) -> SamplingPlan:
        """A plan for rows without history: those with the same sampler share one row of the
        table."""
        table = SamplerTable(len(samplers), self._vocab_size, self._device, installed())
        for number in np.unique(which_M).tolist():
            table.set(number, SamplingRow(samplers[number], no_i32(), no_i32()))
        return SamplingPlan.over(table, which_M)


def _nothing_to_sample() -> QuireError:
    return InvalidArgument(
        "no token can be sampled: the sampler excludes every one, or the logits are not numbers"
    )
