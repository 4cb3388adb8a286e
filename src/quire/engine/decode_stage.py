"""Stages 4 and 5 for sequences: who advances, first tokens, the decode loop.

Owns cursors, positions and room; leaves tokens and stops to the sampler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import Batch, SequenceEnd
from quire.core.errors import UnknownHandle
from quire.engine.adapters.token_groups import adapters_or_none
from quire.engine.attention.backend import AttentionRows
from quire.engine.failures import Failures, check_message
from quire.engine.kv_cache.page_tables import PageLists, PageTables
from quire.engine.model_runner import ModelRunner
from quire.engine.sequence_report import Entries, SequenceReport
from quire.engine.sequence_sampler import SequenceSampler
from quire.engine.sequences import Sequences

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

    def begin(self, batch: Batch, failures: Failures) -> SequenceReport:
        """The message's entries. Stale and ended sequences are inert; unknown ones fail."""
        sequences: list[int] = []
        indices: list[int] = []
        if batch.forward is not None:
            indices = np.flatnonzero(batch.forward.sequences >= 0).tolist()
            sequences = batch.forward.sequences[indices].tolist()
        num_first = len(sequences)
        steps = [batch.num_steps] * num_first
        epochs: list[int] = []
        if batch.advance is not None:
            rows = batch.advance
            check_message(
                len(rows.sequences) == len(rows.epochs) == len(rows.max_steps),
                "advance arrays differ in length",
            )
            sequences += rows.sequences.tolist()
            epochs = rows.epochs.tolist()
            steps += np.clip(rows.max_steps, 0, batch.num_steps).tolist()
            indices += range(len(rows.sequences))
        check_message(len(set(sequences)) == len(sequences), "a sequence stands in it twice")
        stages = ["forward"] * num_first + ["advance"] * (len(sequences) - num_first)
        return SequenceReport(
            self._entries(np.array(sequences, np.int64), epochs, steps, stages, indices, failures)
        )

    def _entries(
        self,
        sequences: I64,
        advance_epochs: list[int],
        steps: list[int],
        stages: list[str],
        indices: list[int],
        failures: Failures,
    ) -> Entries:
        unknown = ~self._sequences.are_open(sequences)
        rows = np.where(unknown, 0, sequences)
        num_first = len(sequences) - len(advance_epochs)
        epochs = np.where(unknown, -1, self._sequences.epoch[rows])
        named = np.concatenate((epochs[:num_first], np.array(advance_epochs, np.int64)))
        inert = ~unknown & ((named != epochs) | ~self._sequences.running(rows))
        for entry in np.flatnonzero(unknown[num_first:]).tolist():
            error = UnknownHandle(
                f"sequence {sequences[num_first + entry]} is not open: it cannot advance"
            )
            failures.add("advance", indices[num_first + entry], error)
        return Entries(
            sequences=sequences,
            epochs=named,
            steps_left=np.where(unknown | inert, 0, np.array(steps, np.int64)),
            inert=inert,
            unknown=unknown,
            stages=stages,
            indices=indices,
        )

    def ready(self, report: SequenceReport) -> I64:
        """Entries that run their last token in the next step; those without room end here."""
        entries = report.entries
        live = np.flatnonzero(entries.steps_left > 0)
        rows = entries.sequences[live]
        live = live[self._sequences.running(rows) & (self._sequences.last_token[rows] >= 0)]
        rows = entries.sequences[live]
        room = self._sequences.cursor[rows] < self._sequences.limit[rows]
        room &= self._sequences.position[rows] < self._max_model_len
        self._sequences.finish(rows[~room], SequenceEnd.NO_ROOM)
        return live[room]

    def next_slots(self, rows_R: I64) -> I64:
        """The flat slot that each sequence appends to in the next step ``[R]``."""
        pages = self._tables.page_lists(self._sequences.table[rows_R].tolist())
        return self._slots(rows_R, pages, 1)[:, 0]

    def _slots(self, rows_R: I64, pages: PageLists, num_steps: int) -> I64:
        """Flat slots ``[R, num_steps]`` that each sequence appends to next; clipped at its limit.

        ``pages`` are the page lists of the rows' tables.
        """
        page_size = self._runner.pool.page_size
        cursor = self._sequences.cursor[rows_R][:, None] + np.arange(num_steps)
        cursor = np.minimum(cursor, self._sequences.limit[rows_R][:, None] - 1)
        entry, offset = cursor // page_size, cursor % page_size
        fits = bool((entry[:, -1] < np.diff(pages.starts)).all()) if len(rows_R) else True
        check_message(fits, "a sequence's limit lies beyond its page table")
        blocks = pages.blocks[pages.starts[:-1, None] + entry].astype(np.int64)
        slots: I64 = blocks * page_size + offset
        return slots

    def finish_step(
        self,
        report: SequenceReport,
        appended_E: I64,
        sampling_E: I64,
        hidden_SH: Tensor,
        failures: Failures,
    ) -> None:
        """After a ragged step: ``appended_E`` wrote their last token; ``sampling_E`` sample from
        ``hidden_SH``, first tokens included."""
        rows = report.entries.sequences[appended_E]
        self._sequences.cursor[rows] += 1
        self._sequences.position[rows] += 1
        self._reveal(rows, np.ones_like(rows))
        sampling_E, keep = self._can_sample(report, sampling_E, failures)
        if not len(sampling_E):
            return
        logits = self._runner.logits(hidden_SH[self._runner.to_device(keep)])
        plan = self._sampler.plan(report.entries.sequences[sampling_E])
        self._sampler.sample(sampling_E, logits, plan, report, failures)
        report.entries.steps_left[sampling_E] -= 1
        self.keep_histories(report)

    def loop(self, report: SequenceReport, failures: Failures) -> int:
        """Decode until every entry has ended or used up its steps; the number of tokens run."""
        active = self.ready(report)
        if not len(active):
            return 0
        entries, sequences = report.entries, self._sequences
        rows = entries.sequences[active]
        num_steps = int(entries.steps_left[active].max())
        pages = self._tables.page_lists(sequences.table[rows].tolist())
        slots = self._slots(rows, pages, num_steps)
        plan = self._runner.plan_decode(self._decode_rows(rows, slots[:, 0], pages), num_steps)
        sampling = self._sampler.plan(rows)
        started, first_cursor, num_tokens = rows, sequences.cursor[rows], 0
        for step in range(num_steps):
            positions = sequences.position[rows].astype(np.int32)
            plan.advance(slots[:, step], positions)
            hidden = self._runner.run_decode(
                plan, sequences.last_token[rows], positions, slots[:, step]
            )
            num_tokens += len(rows)
            sequences.cursor[rows] += 1
            sequences.position[rows] += 1
            logits = self._runner.logits(hidden)
            self._sampler.sample(active, logits, sampling, report, failures)
            entries.steps_left[active] -= 1
            still = self.ready(report)
            if not len(still):
                break
            if len(still) < len(active):
                kept = np.flatnonzero(np.isin(active, still))
                plan.keep(kept)
                active, rows, slots = active[kept], rows[kept], slots[kept]
                self.keep_histories(report)
                sampling = self._sampler.plan(rows)
        self._reveal(started, sequences.cursor[started] - first_cursor)
        self.keep_histories(report)
        return num_tokens

    def keep_histories(self, report: SequenceReport) -> None:
        """Append what was sampled to the sequences' histories."""
        for sequence, tokens in report.unflushed():
            self._sequences.objects(sequence).history.append(tokens)

    def _can_sample(
        self, report: SequenceReport, sampling_E: I64, failures: Failures
    ) -> tuple[I64, I64]:
        """The entries that may sample, and their places in ``sampling_E``."""
        keep = []
        for place, entry in enumerate(sampling_E.tolist()):
            row = int(report.entries.sequences[entry])
            failure = self._sequences.objects(row).failure
            if failure is not None:
                self._sequences.end[row] = SequenceEnd.FAILED
                failures.add(report.entries.stages[entry], report.entries.indices[entry], failure)
            elif self._sequences.num_generated[row] >= self._sequences.max_tokens[row]:
                self._sequences.end[row] = SequenceEnd.MAX_TOKENS
            else:
                keep.append(place)
        kept = np.array(keep, np.int64)
        return sampling_E[kept], kept

    def _reveal(self, rows: I64, counts: I64) -> None:
        """Set the bits of the ``counts`` slots before each row's cursor."""
        page_size, cursors = self._runner.pool.page_size, self._sequences.cursor[rows]
        for table, cursor, count in zip(
            self._sequences.table[rows].tolist(), cursors.tolist(), counts.tolist(), strict=True
        ):
            self._tables.get(table).reveal(cursor - count, cursor, page_size)

    def _decode_rows(self, rows: I64, slots: I64, pages: PageLists) -> AttentionRows:
        return AttentionRows(
            row_starts=np.arange(len(rows) + 1),
            positions=self._sequences.position[rows].astype(np.int32),
            slots=slots,
            pages=pages,
            slot_positions=self._runner.pool.positions_AS[0],
            page_size=self._runner.pool.page_size,
            adapters=adapters_or_none(self._sequences.adapter[rows]),
        )
