"""Stages 4 and 5 for sequences: which of them advance, first tokens, the decode loop.

Owns cursors, positions and free slots; leaves tokens and stops to the sampler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import AdvanceRows, Batch
from quire.core.batch_result import SequenceEnd
from quire.core.errors import UnknownHandle
from quire.engine.adapters.token_groups import adapters_or_none
from quire.engine.attention.backend import AttentionRows
from quire.engine.failures import RowFailures, check_message
from quire.engine.kv_cache.page_tables import PageTables, TablePages
from quire.engine.model_runner import AdvanceResult, ModelRunner, SequenceState
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sequence_report import Entries, SequenceReport
from quire.engine.sequence_sampler import SequenceSampler, nothing_to_sample
from quire.engine.sequences import Sequences
from quire.engine.stages.fused_decode import FusedDecode

I64 = NDArray[np.int64]


class DecodeStage:
    """Advances sequences over one message."""

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
        self._state = SequenceState(sequences, sampler.table, tables, max_model_len)
        self._fused = FusedDecode(runner, tables, sequences, sampler, max_model_len)

    def advance(
        self, rows: AdvanceRows, num_steps: int, failures: RowFailures
    ) -> AdvanceResult | None:
        """Execute a message without forward rows in one call of the runner; None, with nothing
        done, if the runner cannot take all of it: see ``ModelRunner.advance``."""
        lengths = {len(rows.sequences), len(rows.epochs), len(rows.max_steps)}
        if len(lengths) > 1 or 0 in lengths:
            return None
        advanced = self._runner.advance(rows, num_steps, self._state)
        if advanced is not None and advanced.num_failed:
            for entry in np.flatnonzero(advanced.answer.ends == SequenceEnd.FAILED).tolist():
                failures.add("advance", entry, nothing_to_sample())
        return advanced

    def begin(self, batch: Batch, failures: RowFailures) -> SequenceReport:
        """The message's entries. Stale and ended sequences are skipped; unknown ones fail."""
        indices = sequences = epochs = np.empty(0, np.int64)
        if batch.forward is not None:
            indices = np.flatnonzero(batch.forward.sequences >= 0)
            sequences = batch.forward.sequences[indices].astype(np.int64)
        num_first = len(sequences)
        steps = np.full(num_first, batch.num_steps)
        if batch.advance is not None:
            rows = batch.advance
            check_message(
                len(rows.sequences) == len(rows.epochs) == len(rows.max_steps),
                "advance arrays differ in length",
            )
            epochs = rows.epochs.astype(np.int64)
            sequences = np.concatenate((sequences, rows.sequences))
            advance_steps = np.minimum(np.maximum(rows.max_steps, 0), batch.num_steps)
            steps = np.concatenate((steps, advance_steps))
            indices = np.concatenate((indices, np.arange(len(rows.sequences))))
        once = len(set(sequences.tolist())) == len(sequences)
        check_message(once, "a sequence occurs in it twice")
        entries = self._entries(sequences, epochs, steps, indices)
        for entry in np.flatnonzero(entries.unknown[num_first:]).tolist():
            error = UnknownHandle(
                f"sequence {sequences[num_first + entry]} is not open: it cannot advance"
            )
            failures.add("advance", entry, error)
        return SequenceReport(entries)

    def _entries(self, sequences: I64, advance_epochs: I64, steps: I64, indices: I64) -> Entries:
        unknown = ~self._sequences.are_open(sequences)
        rows = np.where(unknown, 0, sequences)
        num_first = len(sequences) - len(advance_epochs)
        epochs = np.where(unknown, -1, self._sequences.epoch[rows])
        named = np.concatenate((epochs[:num_first], advance_epochs))
        inert = ~unknown & ((named != epochs) | ~self._sequences.running(rows))
        return Entries(
            sequences=sequences,
            epochs=named,
            steps_left=np.where(unknown | inert, 0, steps),
            inert=inert,
            unknown=unknown,
            indices=indices,
            num_first=num_first,
        )

    def ready(self, report: SequenceReport) -> I64:
        """Entries that run their last token in the next step; those without a free slot end
        here."""
        entries, sequences = report.entries, self._sequences
        live = np.flatnonzero(entries.steps_left > 0)
        rows = entries.sequences[live]
        goes_on = sequences.running(rows) & (sequences.last_token[rows] >= 0)
        room = sequences.cursor[rows] < sequences.limit[rows]
        room &= sequences.position[rows] < self._max_model_len
        if not room.all():
            sequences.finish(rows[goes_on & ~room], SequenceEnd.NO_ROOM)
        return live[goes_on & room]

    def next_slots(self, rows_R: I64) -> I64:
        """The flat slot to which each sequence appends in the next step ``[R]``."""
        return self._slots(rows_R, 1)[:, 0]

    def _slots(self, rows_R: I64, num_steps: int) -> I64:
        """Flat slots ``[R, num_steps]`` to which each sequence appends; clipped at its limit."""
        page_size = self._runner.pool.page_size
        tables_R1 = self._sequences.table[rows_R][:, None]
        cursor_RS = self._sequences.cursor[rows_R][:, None] + np.arange(num_steps)
        cursor_RS = np.minimum(cursor_RS, self._sequences.limit[rows_R][:, None] - 1)
        num_slots_R1 = self._tables.num_pages_T[tables_R1] * page_size
        fits = bool(((tables_R1 >= 0) & (cursor_RS < num_slots_R1)).all())
        check_message(fits, "a sequence's limit is beyond its page table")
        return self._tables.slots(tables_R1, cursor_RS, page_size)

    def finish_step(
        self,
        report: SequenceReport,
        appended_E: I64,
        sampling_E: I64,
        hidden_SH: Tensor,
        failures: RowFailures,
    ) -> None:
        """Record a ragged step: ``appended_E`` wrote their last token; ``sampling_E`` sample from
        ``hidden_SH``, first tokens included."""
        rows = report.entries.sequences[appended_E]
        self._append_one(rows)
        sampling_E, keep = self._can_sample(report, sampling_E, failures)
        if not len(sampling_E):
            return
        logits = self._runner.logits(hidden_SH[self._runner.to_device(keep)])
        plan = self._sampler.plan(report.entries.sequences[sampling_E])
        self._sampler.sample(sampling_E, logits, plan, report, failures)
        report.entries.steps_left[sampling_E] -= 1
        self._keep_histories(report, plan)

    def loop(self, report: SequenceReport, failures: RowFailures) -> int:
        """Decode until every entry has ended or used up its steps; returns the number of tokens
        run."""
        active = self.ready(report)
        if not len(active):
            return 0
        rows = report.entries.sequences[active]
        num_steps = int(report.entries.steps_left[active].max())
        slots = self._slots(rows, num_steps)
        sampling = self._sampler.plan(rows)
        if self._fused.fits(rows, sampling):
            appended = self._fused.run(
                active, self._decode_rows(rows, slots[:, 0]), slots, sampling, report, failures
            )
            if appended is not None:
                self.ready(report)
                return int(appended.sum())
        return self._step_by_step(active, slots, sampling, report, failures)

    def _step_by_step(
        self,
        active: I64,
        slots_RS: I64,
        sampling: SamplingPlan,
        report: SequenceReport,
        failures: RowFailures,
    ) -> int:
        entries, sequences = report.entries, self._sequences
        rows = entries.sequences[active]
        num_steps = slots_RS.shape[1]
        plan = self._runner.plan_decode(self._decode_rows(rows, slots_RS[:, 0]), num_steps)
        num_tokens = 0
        for step in range(num_steps):
            positions = sequences.position[rows].astype(np.int32)
            slots = slots_RS[:, step]
            plan.advance(slots, positions)
            hidden = self._runner.run_decode(plan, sequences.last_token[rows], positions, slots)
            num_tokens += len(rows)
            self._append_one(rows)
            logits = self._runner.logits(hidden)
            self._sampler.sample(active, logits, sampling, report, failures)
            entries.steps_left[active] -= 1
            still = self.ready(report)
            if not len(still):
                break
            if len(still) < len(active):
                kept = np.flatnonzero(np.isin(active, still))
                plan.keep(kept)
                active, rows, slots_RS = active[kept], rows[kept], slots_RS[kept]
                self._keep_histories(report, sampling)
                sampling = self._sampler.plan(rows)
        self._keep_histories(report, sampling)
        return num_tokens

    def _keep_histories(self, report: SequenceReport, plan: SamplingPlan) -> None:
        """Append the sampled tokens to the sequences' histories, if a sampler uses histories."""
        if not plan.remembers:
            return
        for sequence, tokens in report.unflushed():
            self._sequences.objects(sequence).history.append(tokens)

    def _can_sample(
        self, report: SequenceReport, sampling_E: I64, failures: RowFailures
    ) -> tuple[I64, I64]:
        """The entries that may sample, and their indices in ``sampling_E``."""
        keep = []
        for place, entry in enumerate(sampling_E.tolist()):
            row = int(report.entries.sequences[entry])
            failure = self._sequences.objects(row).failure
            if failure is not None:
                self._sequences.end[row] = SequenceEnd.FAILED
                failures.add(*report.entries.source(entry), failure)
            elif self._sequences.num_generated[row] >= self._sequences.max_tokens[row]:
                self._sequences.end[row] = SequenceEnd.MAX_TOKENS
            else:
                keep.append(place)
        kept = np.array(keep, np.int64)
        return sampling_E[kept], kept

    def _append_one(self, rows_R: I64) -> None:
        """Account for one appended token each: set the bits of the slots, advance cursors and
        positions."""
        sequences = self._sequences
        tables_R, cursors_R = sequences.table[rows_R], sequences.cursor[rows_R]
        self._tables.reveal(tables_R, cursors_R, self._runner.pool.page_size)
        sequences.append(rows_R, np.ones_like(rows_R))

    def _decode_rows(self, rows_R: I64, slots_R: I64) -> AttentionRows:
        return AttentionRows(
            row_starts=np.arange(len(rows_R) + 1),
            positions=self._sequences.position[rows_R].astype(np.int32),
            slots=slots_R,
            pages=TablePages(self._tables, self._sequences.table[rows_R]),
            slot_positions=self._runner.pool.positions_AS[0],
            page_size=self._runner.pool.page_size,
            adapters=adapters_or_none(self._sequences.adapter[rows_R]),
        )
