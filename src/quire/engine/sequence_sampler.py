"""Samples one token for each of several sequences: constraints, choice, log probabilities, stops.

Owns the order of precedence among ends. Runs after the model; does not know pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch_result import SequenceEnd
from quire.core.errors import InvalidArgument, QuireError
from quire.core.interfaces import Tokenizer
from quire.engine.failures import RowFailures
from quire.engine.sampling.grammar_hosts import GrammarHosts
from quire.engine.sampling.grammar_masks import forbidden_tokens
from quire.engine.sampling.logprobs import RowLogprobs, row_logprobs
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.registry import installed
from quire.engine.sampling.table import SamplerTable, SamplingRow
from quire.engine.sequence_report import SampledTokens, SequenceReport
from quire.engine.sequences import NO_TOKEN, SequenceObjects, Sequences

I64 = NDArray[np.int64]


def nothing_to_sample() -> InvalidArgument:
    """The error of a sequence that ends as FAILED because no token can be chosen."""
    return InvalidArgument(
        "no token can be sampled: the sampler and the constraint exclude every one, "
        "or the model's logits are not numbers; loosen them"
    )


class SequenceSampler:
    """Samples for rows of ``Sequences`` and applies their stop conditions. ``table`` holds their
    samplers, ``grammars`` their constraints."""

    def __init__(
        self,
        sequences: Sequences,
        tokenizer: Tokenizer,
        grammars: GrammarHosts,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._sequences = sequences
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._device = device
        self.table = SamplerTable(sequences.capacity, vocab_size, device, installed())
        self._known: list[SequenceObjects | None] = [None] * sequences.capacity
        self._last_plan: tuple[I64, int, SamplingPlan] | None = None

    def plan(self, rows_S: I64) -> SamplingPlan:
        """A plan for these sequences, from their current samplers and histories.

        Only sequences that were opened since, or sampled elsewhere, are processed one by one; if
        there are none, the previous plan of the same sequences stays valid.
        """
        table, sequences = self.table, self._sequences
        last = self._last_plan
        if (
            last is not None
            and last[1] == sequences.num_opened
            and not last[2].remembers
            and np.array_equal(last[0], rows_S)
        ):
            return last[2]
        remembers_S = table.needs_counts[rows_S] | table.needs_history[rows_S]
        is_behind_S = table.num_recorded[rows_S] != sequences.num_generated[rows_S]
        stale = set(rows_S[remembers_S & is_behind_S].tolist())
        known = self._known
        stale |= {row for row in rows_S.tolist() if known[row] is not sequences.objects(row)}
        for row in stale:
            objects = known[row] = sequences.objects(row)
            history = objects.history
            table.set(row, SamplingRow(objects.sampler, history.tokens, history.generated))
        if stale:
            self._find_plain(np.array(sorted(stale)))
        if stale or last is None or not np.array_equal(last[0], rows_S):
            last = rows_S, sequences.num_opened, SamplingPlan.over(table, rows_S)
        self._last_plan = last[0], sequences.num_opened, last[2]
        return last[2]

    def _find_plain(self, rows_S: I64) -> None:
        """Record which of these rows, whose samplers are in the table, a runner can advance
        itself."""
        sequences = self._sequences
        looks_S = sequences.is_watched[rows_S] | (sequences.num_logprobs[rows_S] >= 0)
        sequences.is_plain[rows_S] = ~(looks_S | self.table.wants_more(rows_S))

    def sample(
        self,
        entries_S: I64,
        logits_SV: Tensor,
        plan: SamplingPlan,
        report: SequenceReport,
        failures: RowFailures,
    ) -> None:
        """Sample the next token of each entry's sequence and record it.

        A sequence that cannot continue ends as FAILED, without affecting the others.
        """
        rows_S = report.entries.sequences[entries_S]
        constrained_SV = self._constrain(entries_S, rows_S, logits_SV, report, failures)
        tokens_S, chosen_S = plan.sample(constrained_SV, self._sequences.position[rows_S])
        if not chosen_S.all():
            self.fail_unchosen(entries_S, ~chosen_S, plan, report, failures)
        good_S = chosen_S & self._sequences.running(rows_S)
        if not good_S.all():
            entries_S, rows_S, tokens_S = entries_S[good_S], rows_S[good_S], tokens_S[good_S]
            if not len(entries_S):
                return
            logits_SV = logits_SV[torch.from_numpy(good_S).to(logits_SV.device)]
        report.record(
            SampledTokens(entries_S, tokens_S, self._logprobs(rows_S, logits_SV, tokens_S))
        )
        self._apply_stops(entries_S, rows_S, tokens_S, report, failures)

    def _constrain(
        self,
        entries_S: I64,
        rows_S: I64,
        logits_SV: Tensor,
        report: SequenceReport,
        failures: RowFailures,
    ) -> Tensor:
        """Logits without stop tokens that are not allowed yet and tokens that a grammar forbids."""
        sequences = self._sequences
        early = np.flatnonzero(sequences.num_generated[rows_S] < sequences.min_tokens[rows_S])
        watched = np.flatnonzero(sequences.is_watched[rows_S])
        if not len(early) and not len(watched):
            return logits_SV
        logits_SV = logits_SV.clone()
        if len(early):
            stops_EW = sequences.stop_tokens[rows_S[early]]
            stop, column = np.nonzero((stops_EW != NO_TOKEN) & (stops_EW < self._vocab_size))
            places = self._to_device(early[stop]), self._to_device(stops_EW[stop, column])
            logits_SV[places] = -torch.inf
        grammars = [
            (place, grammar)
            for place in watched.tolist()
            if (grammar := sequences.objects(int(rows_S[place])).grammar) is not None
        ]
        if grammars:
            places_G = np.array([place for place, _ in grammars])
            matchers = [grammar for _, grammar in grammars]
            forbidden_GV, errors = forbidden_tokens(matchers, self._vocab_size)
            for place, error in zip(places_G.tolist(), errors, strict=True):
                if error is not None:
                    self._fail(int(entries_S[place]), error, report, failures)
            index_G = self._to_device(places_G)
            masked_GV = logits_SV.index_select(0, index_G)
            masked_GV.masked_fill_(torch.from_numpy(forbidden_GV).to(self._device), -torch.inf)
            logits_SV.index_copy_(0, index_G, masked_GV)
        return logits_SV

    def _to_device(self, numbers: I64) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)

    def _logprobs(self, rows_S: I64, logits_SV: Tensor, tokens_S: I64) -> RowLogprobs | None:
        """Log probabilities of the rows that asked for them; NaN and -1 in the other rows."""
        num_wanted_S = self._sequences.num_logprobs[rows_S]
        asking = np.flatnonzero(num_wanted_S >= 0)
        if not len(asking):
            return None
        if len(asking) < len(rows_S):
            logits_SV = logits_SV.index_select(0, self._to_device(asking))
        found = row_logprobs(logits_SV, tokens_S[asking], int(num_wanted_S.max()))
        hidden = np.arange(found.top_ids.shape[1]) >= num_wanted_S[asking, None]
        num_rows, width = len(rows_S), found.top_ids.shape[1]
        logprobs = RowLogprobs(
            np.full(num_rows, np.nan, np.float32),
            np.full((num_rows, width), -1, np.int32),
            np.full((num_rows, width), np.nan, np.float32),
        )
        logprobs.chosen[asking] = found.chosen
        logprobs.top_ids[asking] = np.where(hidden, np.int32(-1), found.top_ids)
        logprobs.top[asking] = np.where(hidden, np.float32(np.nan), found.top)
        return logprobs

    def _apply_stops(
        self,
        entries_S: I64,
        rows_S: I64,
        tokens_S: I64,
        report: SequenceReport,
        failures: RowFailures,
    ) -> None:
        sequences = self._sequences
        sequences.last_token[rows_S] = tokens_S
        sequences.num_generated[rows_S] += 1
        budget = sequences.num_generated[rows_S] >= sequences.max_tokens[rows_S]
        sequences.end[rows_S[budget]] = SequenceEnd.MAX_TOKENS
        stopped = (sequences.stop_tokens[rows_S] == tokens_S[:, None]).any(axis=1)
        watched = np.flatnonzero(sequences.is_watched[rows_S]).tolist()
        self._advance_grammars([(int(rows_S[place]), int(tokens_S[place])) for place in watched])
        for place in watched:
            entry, row, token = entries_S[place], rows_S[place], tokens_S[place]
            self._apply_objects(int(entry), int(row), int(token), report, failures)
        sequences.end[rows_S[stopped]] = SequenceEnd.STOP_TOKEN
        sequences.matched[rows_S[stopped]] = tokens_S[stopped]

    def _advance_grammars(self, sampled: Sequence[tuple[int, int]]) -> None:
        """Advance the grammars of these rows by their tokens; the processes then work in
        parallel."""
        advanced = [
            (grammar, token)
            for row, token in sampled
            if (grammar := self._sequences.objects(row).grammar) is not None
        ]
        if advanced:
            self._grammars.advance(*zip(*advanced, strict=True))

    def _apply_objects(
        self, entry: int, row: int, token: int, report: SequenceReport, failures: RowFailures
    ) -> None:
        """Apply grammar and stop strings; stop strings take precedence."""
        objects = self._sequences.objects(row)
        if objects.grammar is not None:
            try:
                finished = objects.grammar.settle()
            except QuireError as exc:
                self._fail(entry, exc, report, failures)
                return
            if finished:
                self._sequences.end[row] = SequenceEnd.GRAMMAR
        if objects.strings is not None:
            index = objects.strings.push(self._tokenizer.token_bytes(token))
            if index is not None:
                self._sequences.end[row] = SequenceEnd.STOP_STRING
                self._sequences.matched[row] = index

    def fail_unchosen(
        self,
        entries_S: I64,
        unchosen_S: NDArray[np.bool_],
        plan: SamplingPlan,
        report: SequenceReport,
        failures: RowFailures,
    ) -> None:
        for place in np.flatnonzero(unchosen_S).tolist():
            entry = int(entries_S[place])
            if not self._sequences.running(report.entries.sequences[[entry]])[0]:
                continue
            self._fail(entry, plan.error_of(place) or nothing_to_sample(), report, failures)

    def _fail(
        self, entry: int, error: QuireError, report: SequenceReport, failures: RowFailures
    ) -> None:
        self._sequences.end[report.entries.sequences[entry]] = SequenceEnd.FAILED
        failures.add(*report.entries.source(entry), error)
