"""The decode loop as one call of the runner: its inputs, and what its results change in sequences.

The loop itself belongs to the runner. Rows whose tokens must be inspected one by one (grammar, stop
strings, log probabilities or penalties) are not decoded here.

Shapes: R rows, S steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.core.batch_result import SequenceEnd
from quire.engine.attention.backend import AttentionRows
from quire.engine.failures import RowFailures
from quire.engine.kv_cache.page_tables import PageTables
from quire.engine.model_runner import FusedRows, FusedTokens, ModelRunner
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sequence_report import SampledTokens, SequenceReport
from quire.engine.sequence_sampler import SequenceSampler
from quire.engine.sequences import NO_TOKEN, Sequences

I64 = NDArray[np.int64]


class FusedDecode:
    """Decides which rows can be fused, and records the results."""

    def __init__(
        self,
        runner: ModelRunner,
        tables: PageTables,
        sequences: Sequences,
        sampler: SequenceSampler,
        max_model_len: int,
    ) -> None:
        self._runner = runner
        self._tables = tables
        self._sequences = sequences
        self._sampler = sampler
        self._max_model_len = max_model_len

    def fits(self, rows_R: I64, sampling: SamplingPlan) -> bool:
        """Whether the runner alone can decide about the tokens of all these sequences.

        If one does not fit, none is fused: a second pass over the weights would cost the others
        more than the host's work between the steps.
        """
        sequences = self._sequences
        looks = sequences.is_watched[rows_R] | (sequences.num_logprobs[rows_R] >= 0)
        return not looks.any() and sampling.common is not None

    def run(
        self,
        active_R: I64,
        rows: AttentionRows,
        slots_RS: I64,
        sampling: SamplingPlan,
        report: SequenceReport,
        failures: RowFailures,
    ) -> I64 | None:
        """Decode entries ``active_R``; returns how many tokens each appended, None if nothing was
        done."""
        entries, sequences = report.entries, self._sequences
        rows_R = entries.sequences[active_R]
        generated_R, cursors_R = sequences.num_generated[rows_R], sequences.cursor[rows_R]
        limits = (
            entries.steps_left[active_R],
            sequences.limit[rows_R] - cursors_R,
            self._max_model_len - sequences.position[rows_R],
            sequences.max_tokens[rows_R] - generated_R,
        )
        done = self._runner.decode_fused(
            FusedRows(
                rows=rows,
                tokens_R=sequences.last_token[rows_R],
                cursors_R=cursors_R,
                slots_RS=slots_RS,
                steps_R=np.minimum.reduce(limits),
                stop_tokens_RW=sequences.stop_tokens_of(rows_R),
                min_steps_R=np.maximum(sequences.min_tokens[rows_R] - generated_R, 0),
                sampling=sampling,
            )
        )
        if done is None:
            return None
        self._book(active_R, rows_R, done, report)
        if done.failed_R.any():
            self._sampler.fail_unchosen(active_R, done.failed_R, sampling, report, failures)
        appended_R: I64 = done.counts_R + done.failed_R
        entries.steps_left[active_R] -= appended_R
        if not done.is_revealed:
            self._reveal(rows_R, appended_R)
        sequences.append(rows_R, appended_R)
        return appended_R

    def _book(self, active_R: I64, rows_R: I64, done: FusedTokens, report: SequenceReport) -> None:
        """Record the tokens and how sequences ended. A stop token takes precedence over the token
        limit."""
        sequences, tokens_RS = self._sequences, done.tokens_SR.T
        tokens = tokens_RS[tokens_RS != NO_TOKEN]  # row by row, as the report expects
        report.record(SampledTokens(np.repeat(active_R, done.counts_R), tokens, None))
        some_R = done.counts_R > 0
        ends_R = np.cumsum(done.counts_R)
        sequences.last_token[rows_R[some_R]] = tokens[ends_R[some_R] - 1]
        generated_R = sequences.num_generated[rows_R] + done.counts_R
        sequences.num_generated[rows_R] = generated_R
        spent_R = generated_R >= sequences.max_tokens[rows_R]
        if spent_R.any():
            sequences.finish(rows_R[spent_R], SequenceEnd.MAX_TOKENS)
        if done.stopped_R.any():
            stopped = rows_R[done.stopped_R]
            sequences.finish(stopped, SequenceEnd.STOP_TOKEN)
            sequences.matched[stopped] = sequences.last_token[stopped]

    def _reveal(self, rows_R: I64, counts_R: I64) -> None:
        """Set the bits of the slots to which tokens were appended."""
        rows_S = np.repeat(rows_R, counts_R)
        firsts_S = np.repeat(np.cumsum(counts_R) - counts_R, counts_R)
        cursors_S = self._sequences.cursor[rows_S] + np.arange(len(rows_S)) - firsts_S
        page_size = self._runner.pool.page_size
        self._tables.reveal(self._sequences.table[rows_S], cursors_S, page_size)
