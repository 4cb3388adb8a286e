"""Executes one message: the stages of ``quire.core.batch``, in order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import Batch, EmbedRows, ForwardRows, ImageRow
from quire.core.batch_result import BatchResult, SequenceEnd
from quire.core.errors import InvalidArgument
from quire.engine.attention.backend import AttentionRows
from quire.engine.attention.scored_rows import AttentionMass, scored_rows
from quire.engine.embed_slots import EmbedSlots, TokenSlots
from quire.engine.failures import RowFailures, check_message
from quire.engine.model_runner import ModelRunner
from quire.engine.sampling.logprobs import row_logprobs
from quire.engine.sequence_report import SequenceReport
from quire.engine.sequences import Sequences
from quire.engine.stages.decode import DecodeStage
from quire.engine.stages.forward import CheckedRows, ForwardStage
from quire.engine.stages.memory import MemoryOperations
from quire.engine.stages.readout import ReadoutStage
from quire.engine.vision.encoder import ImageEncoder

I64 = NDArray[np.int64]

_SCORE_ROWS = 64
"""Score rows whose logits are held at a time; those of a whole long prompt would take gigabytes."""


class StepExecutor:
    """Executes messages over the engine's parts."""

    def __init__(
        self,
        operations: MemoryOperations,
        forward: ForwardStage,
        decode: DecodeStage,
        runner: ModelRunner,
        sequences: Sequences,
        embeds: EmbedSlots,
        token_slots: TokenSlots,
        vocab_size: int,
        device: torch.device,
        images: ImageEncoder | None = None,
    ) -> None:
        self._operations = operations
        self._forward = forward
        self._decode = decode
        self._runner = runner
        self._sequences = sequences
        self._embeds = embeds
        self._token_slots = token_slots
        self._vocab_size = vocab_size
        self._device = device
        self._images = images
        self._readout = ReadoutStage(runner, embeds, token_slots, vocab_size, device)

    def run(self, batch: Batch) -> BatchResult:
        """Run one message; ``elapsed_s`` is left at 0."""
        check_message(batch.num_steps >= 1, f"num_steps is {batch.num_steps}")
        failures = RowFailures()
        result = BatchResult(serial=batch.serial, elapsed_s=0.0, failures=failures.rows)
        self._operations.run(batch.operations, failures)
        if batch.embeds is not None:
            self._embed(batch.embeds, failures)
        for index, image in enumerate(batch.images):
            with failures.isolate("images", index):
                self._embed_image(image)
        report: SequenceReport | None = None
        if batch.forward is not None:
            report = self._decode.begin(batch, failures)
            self._run_forward(batch.forward, report, result, failures)
        if batch.dists is not None:
            self._readout.dists(batch.dists, result, failures)
        if batch.samples is not None:
            self._readout.samples(batch.samples, result, failures)
        self._advance(batch, report, result, failures)
        return result

    def _advance(
        self,
        batch: Batch,
        report: SequenceReport | None,
        result: BatchResult,
        failures: RowFailures,
    ) -> None:
        """Stage 5. ``report``: that of the sequences in stage 3, if there was one."""
        if report is None:
            if batch.advance is None:
                return
            advanced = self._decode.advance(batch.advance, batch.num_steps, failures)
            if advanced is not None:
                result.num_tokens += advanced.num_tokens
                result.sequences = advanced.answer
                return
            report = self._decode.begin(batch, failures)
        result.num_tokens += self._decode.loop(report, failures)
        if len(report.entries):
            result.sequences = report.result(self._sequences)

    def _embed(self, rows: EmbedRows, failures: RowFailures) -> None:
        check_message(len(rows.tokens) == len(rows.embeds), "embed arrays differ in length")
        tokens = self._token_slots.resolve(rows.tokens)
        ok = self._embeds.contains(rows.embeds) & (tokens >= 0) & (tokens < self._vocab_size)
        for index in np.flatnonzero(~ok).tolist():
            error = InvalidArgument(
                f"token {int(tokens[index])} into embed {int(rows.embeds[index])}: the vocabulary "
                f"has {self._vocab_size} tokens, there are {self._embeds.num_embeds} embeds"
            )
            failures.add("embeds", index, error)
        if ok.any():
            vectors = self._runner.embed(tokens[ok])
            self._embeds.write(rows.embeds[ok], vectors)

    def _embed_image(self, image: ImageRow) -> None:
        if self._images is None:
            raise InvalidArgument("this model sees no images: send it to one that does")
        wanted = self._images.info.num_embeds
        if len(image.embeds) != wanted or not self._embeds.contains(image.embeds).all():
            raise InvalidArgument(
                f"an image into embeds {image.embeds.tolist()[:8]}...: it takes {wanted} of the "
                f"{self._embeds.num_embeds} that there are"
            )
        embeddings = self._images(image.file.tobytes())
        self._embeds.write(image.embeds, embeddings.to(self._embeds.vectors_EH.dtype))

    def _run_forward(
        self, rows: ForwardRows, report: SequenceReport, result: BatchResult, failures: RowFailures
    ) -> None:
        checked = self._forward.check(rows, failures)
        entries = report.entries
        decoding = self._decode.ready(report)
        decode_rows = entries.sequences[decoding]
        slots = self._decode.next_slots(decode_rows)
        ragged = self._forward.attention_rows(rows, checked, decode_rows, slots)
        last_tokens = self._sequences.last_token[decode_rows]
        embeds = np.concatenate((rows.embeds[checked.tokens], np.full(len(decoding), -1, np.int32)))
        result.num_tokens += len(embeds)
        self._operations.forward_begins(rows.slots.reshape(-1).astype(np.int64), ragged.slots)
        if len(embeds):
            tokens = np.concatenate((checked.values, last_tokens))
            mass = self._mass(rows, checked, ragged)
            hidden = self._runner.run_rows(ragged, tokens, embeds, mass)
            if mass is not None:
                self._report_mass(rows, checked, mass, result)
            self._keep_outputs(rows, checked.tokens, hidden)
        else:
            hidden = torch.empty(0, device=self._device)
        if len(rows.score_targets):
            self._score(rows, checked.tokens, hidden, result)
        first, last = self._first_tokens(rows, checked.kept, checked.row_starts, report)
        places = np.concatenate((last, len(checked.values) + np.arange(len(decoding))))
        sampling = np.concatenate((first, decoding))
        if len(sampling):
            chosen = hidden.index_select(0, self._runner.to_device(places))
            self._decode.finish_step(report, decoding, sampling, chosen, failures)

    def _mass(
        self, rows: ForwardRows, checked: CheckedRows, ragged: AttentionRows
    ) -> AttentionMass | None:
        """Buffers for the mass of the executable rows that ask for it; None if no row does."""
        members = np.flatnonzero(np.isin(checked.kept, rows.attention_rows)).tolist()
        if not members:
            return None
        return AttentionMass(scored_rows(ragged, members), self._runner.pool.shape.num_layers)

    def _report_mass(
        self, rows: ForwardRows, checked: CheckedRows, mass: AttentionMass, result: BatchResult
    ) -> None:
        has_mass = np.isin(rows.attention_rows, checked.kept)
        parts = [mass.of_row(index) for index in range(len(mass.rows))]
        widths = np.zeros(len(has_mass), np.int64)
        widths[has_mass] = [part.shape[1] for part in parts]
        result.attention_starts = np.concatenate(([0], np.cumsum(widths))).astype(np.int32)
        result.attention_mass = np.concatenate(parts, axis=1)

    def _first_tokens(
        self, rows: ForwardRows, kept: I64, row_starts: I64, report: SequenceReport
    ) -> tuple[I64, I64]:
        """Entries that sample after a prompt row, and the indices of those rows' last tokens."""
        place_of_row = {row: int(end) - 1 for row, end in zip(kept, row_starts[1:], strict=True)}
        first, last = [], []
        entries = report.entries
        for entry, index in enumerate(entries.indices[: entries.num_first].tolist()):
            if report.entries.steps_left[entry] == 0:
                continue
            if index in place_of_row:
                first.append(entry)
                last.append(place_of_row[index])
            else:
                self._sequences.end[report.entries.sequences[entry]] = SequenceEnd.FAILED
        return np.array(first, np.int64), np.array(last, np.int64)

    def _keep_outputs(self, rows: ForwardRows, tokens: I64, hidden_TH: Tensor) -> None:
        outputs = rows.outputs[tokens]
        wanted = np.flatnonzero(outputs >= 0)
        if not len(wanted):
            return
        if len(wanted) < len(outputs):
            hidden_TH = hidden_TH.index_select(0, self._runner.to_device(wanted))
            outputs = outputs[wanted]
        self._embeds.write(outputs, hidden_TH[: len(wanted)])

    def _score(
        self, rows: ForwardRows, tokens: I64, hidden_TH: Tensor, result: BatchResult
    ) -> None:
        num_tokens, num_top = len(rows.tokens), min(rows.num_scores, self._vocab_size)
        result.score_logprobs = np.full(num_tokens, np.nan, np.float32)
        result.score_ids = np.full((num_tokens, num_top), -1, np.int32)
        result.score_top = np.full((num_tokens, num_top), np.nan, np.float32)
        wanted = np.flatnonzero(rows.score_targets[tokens] >= 0)
        for start in range(0, len(wanted), _SCORE_ROWS):
            part = wanted[start : start + _SCORE_ROWS]
            places = tokens[part]
            logits = self._runner.logits(hidden_TH.index_select(0, self._runner.to_device(part)))
            scores = row_logprobs(logits, rows.score_targets[places].astype(np.int64), num_top)
            result.score_logprobs[places] = scores.chosen
            result.score_ids[places], result.score_top[places] = scores.top_ids, scores.top
