"""One token for each of several sequences: constraints, choice, log probabilities, stops.

Owns the order of precedence among ends. Runs after the model, knows nothing of pages.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import SequenceEnd
from quire.core.errors import InvalidArgument, QuireError
from quire.core.interfaces import Tokenizer
from quire.engine.failures import Failures
from quire.engine.sampling.logprobs import RowLogprobs, row_logprobs
from quire.engine.sampling.plan import SamplingPlan, SamplingRow
from quire.engine.sequence_report import Sampled, SequenceReport
from quire.engine.sequences import NO_TOKEN, Sequences

I64 = NDArray[np.int64]


class SequenceSampler:
    """Samples for rows of ``Sequences`` and applies their stop predicates."""

    def __init__(
        self, sequences: Sequences, tokenizer: Tokenizer, vocab_size: int, device: torch.device
    ) -> None:
        self._sequences = sequences
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._device = device

    def plan(self, rows_S: I64) -> SamplingPlan:
        """A plan for these sequences, from their samplers and histories as they are now."""
        rows = []
        for row in rows_S.tolist():
            objects = self._sequences.objects(row)
            history = objects.history
            rows.append(SamplingRow(objects.sampler, history.tokens, history.generated))
        return SamplingPlan(rows, self._vocab_size, self._device)

    def sample(
        self,
        entries_S: I64,
        logits_SV: Tensor,
        plan: SamplingPlan,
        report: SequenceReport,
        failures: Failures,
    ) -> None:
        """Sample the next token of each entry's sequence and record it.

        Sequences that cannot go on are ended as FAILED, alone.
        """
        rows_S = report.entries.sequences[entries_S]
        constrained_SV = self._constrain(entries_S, rows_S, logits_SV, report, failures)
        tokens_S, chosen_S = plan.sample(constrained_SV, self._sequences.position[rows_S])
        if not chosen_S.all():
            self._fail_unchosen(entries_S[~chosen_S], report, failures)
        good_S = chosen_S & self._sequences.running(rows_S)
        if not good_S.all():
            entries_S, rows_S, tokens_S = entries_S[good_S], rows_S[good_S], tokens_S[good_S]
            logits_SV = logits_SV[torch.from_numpy(good_S).to(logits_SV.device)]
        report.record(Sampled(entries_S, tokens_S, self._logprobs(rows_S, logits_SV, tokens_S)))
        self._apply_stops(entries_S, rows_S, tokens_S, report, failures)

    def _constrain(
        self,
        entries_S: I64,
        rows_S: I64,
        logits_SV: Tensor,
        report: SequenceReport,
        failures: Failures,
    ) -> Tensor:
        """Logits without the stop tokens that come too early and the tokens a grammar forbids."""
        sequences = self._sequences
        early = np.flatnonzero(sequences.num_generated[rows_S] < sequences.min_tokens[rows_S])
        watched = np.flatnonzero(sequences.is_watched[rows_S]).tolist()
        grammars = [
            (place, grammar)
            for place in watched
            if (grammar := sequences.objects(int(rows_S[place])).grammar) is not None
        ]
        if not len(early) and not grammars:
            return logits_SV
        logits_SV = logits_SV.clone()
        for place in early.tolist():
            stops = sequences.stop_tokens[rows_S[place]]
            stops = stops[(stops != NO_TOKEN) & (stops < self._vocab_size)]
            logits_SV[place, torch.from_numpy(stops).to(self._device)] = -torch.inf
        num_words = (self._vocab_size + 31) // 32
        for place, grammar in grammars:
            mask_W = np.zeros(num_words, np.int32)
            try:
                grammar.fill_mask(mask_W)
            except QuireError as exc:
                self._fail(int(entries_S[place]), exc, report, failures)
                continue
            bits = np.unpackbits(mask_W.view(np.uint8), bitorder="little")[: self._vocab_size]
            forbidden = torch.from_numpy(bits == 0).to(self._device)
            logits_SV[place].masked_fill_(forbidden, -torch.inf)
        return logits_SV

    def _logprobs(self, rows_S: I64, logits_SV: Tensor, tokens_S: I64) -> RowLogprobs | None:
        wanted_S = self._sequences.num_logprobs[rows_S]
        if not len(rows_S) or wanted_S.max() < 0:
            return None
        logprobs = row_logprobs(logits_SV, tokens_S, int(wanted_S.max()))
        chosen = np.where(wanted_S >= 0, logprobs.chosen, np.float32(np.nan))
        hidden = np.arange(logprobs.top_ids.shape[1]) >= wanted_S[:, None]
        return RowLogprobs(
            chosen,
            np.where(hidden, np.int32(-1), logprobs.top_ids),
            np.where(hidden, np.float32(np.nan), logprobs.top),
        )

    def _apply_stops(
        self,
        entries_S: I64,
        rows_S: I64,
        tokens_S: I64,
        report: SequenceReport,
        failures: Failures,
    ) -> None:
        sequences = self._sequences
        sequences.last_token[rows_S] = tokens_S
        sequences.num_generated[rows_S] += 1
        budget = sequences.num_generated[rows_S] >= sequences.max_tokens[rows_S]
        sequences.end[rows_S[budget]] = SequenceEnd.MAX_TOKENS
        stopped = (sequences.stop_tokens[rows_S] == tokens_S[:, None]).any(axis=1)
        for place in np.flatnonzero(sequences.is_watched[rows_S]).tolist():
            entry, row, token = entries_S[place], rows_S[place], tokens_S[place]
            self._apply_objects(int(entry), int(row), int(token), report, failures)
        sequences.end[rows_S[stopped]] = SequenceEnd.STOP_TOKEN
        sequences.matched[rows_S[stopped]] = tokens_S[stopped]

    def _apply_objects(
        self, entry: int, row: int, token: int, report: SequenceReport, failures: Failures
    ) -> None:
        """Grammar, then byte strings, which take precedence over it."""
        objects = self._sequences.objects(row)
        if objects.grammar is not None:
            try:
                objects.grammar.consume([token])
            except QuireError as exc:
                self._fail(entry, exc, report, failures)
                return
            if objects.grammar.finished:
                self._sequences.end[row] = SequenceEnd.GRAMMAR
        if objects.strings is not None:
            index = objects.strings.push(self._tokenizer.token_bytes(token))
            if index is not None:
                self._sequences.end[row] = SequenceEnd.STOP_STRING
                self._sequences.matched[row] = index

    def _fail_unchosen(self, entries_S: I64, report: SequenceReport, failures: Failures) -> None:
        for entry in entries_S.tolist():
            if not self._sequences.running(report.entries.sequences[[entry]])[0]:
                continue
            error = InvalidArgument(
                "no token can be sampled: the sampler and the constraint exclude every one, "
                "or the model's logits are not numbers; loosen them"
            )
            self._fail(entry, error, report, failures)

    def _fail(
        self, entry: int, error: QuireError, report: SequenceReport, failures: Failures
    ) -> None:
        self._sequences.end[report.entries.sequences[entry]] = SequenceEnd.FAILED
        failures.add(report.entries.stages[entry], report.entries.indices[entry], error)
