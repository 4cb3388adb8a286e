"""The sequences of one message: which take part, what they sampled, how they ended.

Entry e is one sequence of the message, in the contract's order: those of ``forward``, then those of
``advance``. Samples are recorded step by step and regrouped by entry at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import F32, I32
from quire.core.batch_result import NO_F32, NO_F32_ROWS, NO_I32_ROWS, SequenceEnd, SequenceTokens
from quire.engine.sampling.logprobs import RowLogprobs
from quire.engine.sequences import NO_TOKEN, Sequences

I64 = NDArray[np.int64]


@dataclass(slots=True)
class Entries:
    """Columns by entry. ``steps_left``: tokens that it may still sample in this message.

    ``inert`` entries had ended before, or are named with a stale epoch; ``unknown`` ones are not
    open. The first ``num_first`` entries are those of ``forward``, in the rows ``indices``; the
    others are those of ``advance``.
    """

    sequences: I64
    epochs: I64
    steps_left: I64
    inert: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    indices: I64
    num_first: int

    def source(self, entry: int) -> tuple[str, int]:
        """The place where an entry's failure is reported: the field of the message, and the row in
        it."""
        return "forward" if entry < self.num_first else "advance", int(self.indices[entry])

    def __len__(self) -> int:
        return len(self.sequences)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One step's tokens: ``entries`` [n] and ``tokens`` [n]; log probabilities if requested."""

    entries: I64
    tokens: I64
    logprobs: RowLogprobs | None


class SequenceReport:
    """Collects a message's samples. ``entries`` are fixed when the message begins."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self._steps: list[SampledTokens] = []
        self._num_flushed = 0

    def record(self, sampled: SampledTokens) -> None:
        self._steps.append(sampled)

    def unflushed(self) -> list[tuple[int, I32]]:
        """(sequence, tokens) sampled since the last call, for the histories."""
        steps, self._num_flushed = self._steps[self._num_flushed :], len(self._steps)
        if not steps:
            return []
        entries, tokens, _ = _ragged(steps)
        if not len(entries):  # a loop in which every sequence failed at once
            return []
        starts = np.concatenate(([0], np.flatnonzero(np.diff(entries)) + 1))
        sequences = self.entries.sequences[entries[starts]].tolist()
        spans = zip(starts.tolist(), [*starts[1:].tolist(), len(tokens)], strict=True)
        tokens_32 = tokens.astype(np.int32)
        parts = [tokens_32[start:end] for start, end in spans]
        return list(zip(sequences, parts, strict=True))

    def result(self, sequences: Sequences) -> SequenceTokens:
        """The message's answer, with the ends from ``sequences``."""
        silent = self.entries.inert | self.entries.unknown
        rows = np.where(silent, 0, self.entries.sequences)
        ends, matched = sequences.end[rows], sequences.matched[rows]
        if silent.any():
            ends[silent], matched[silent] = SequenceEnd.RUNNING, NO_TOKEN
            ends[self.entries.unknown] = SequenceEnd.FAILED
        entries, tokens, order = _ragged(self._steps)
        counts = np.bincount(entries, minlength=len(self.entries))
        chosen, top_ids, top = self._logprobs(order)
        return SequenceTokens(
            sequences=self.entries.sequences.astype(np.int32),
            epochs=self.entries.epochs.astype(np.int32),
            token_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
            tokens=tokens.astype(np.int32),
            ends=ends.astype(np.int32),
            matched=matched.astype(np.int32),
            logprobs=chosen,
            top_ids=top_ids,
            top_logprobs=top,
        )

    def _logprobs(self, order: I64) -> tuple[F32, I32, F32]:
        wanted = [step.logprobs for step in self._steps if step.logprobs is not None]
        if not wanted:
            return NO_F32, NO_I32_ROWS, NO_F32_ROWS
        width = max(step.top_ids.shape[1] for step in wanted)
        chosen = np.full(len(order), np.nan, np.float32)
        top_ids = np.full((len(order), width), -1, np.int32)
        top = np.full((len(order), width), np.nan, np.float32)
        start = 0
        for step in self._steps:
            end = start + len(step.tokens)
            if step.logprobs is not None:
                chosen[start:end] = step.logprobs.chosen
                top_ids[start:end, : step.logprobs.top_ids.shape[1]] = step.logprobs.top_ids
                top[start:end, : step.logprobs.top.shape[1]] = step.logprobs.top
            start = end
        return chosen[order], top_ids[order], top[order]


def _ragged(steps: list[SampledTokens]) -> tuple[I64, I64, I64]:
    """Entries and tokens of all steps, sorted by entry and then by time, and the sorting index."""
    if not steps:
        empty = np.empty(0, np.int64)
        return empty, empty, empty
    if len(steps) == 1:
        entries, tokens = steps[0].entries, steps[0].tokens
    else:
        entries = np.concatenate([step.entries for step in steps])
        tokens = np.concatenate([step.tokens for step in steps])
    order = np.argsort(entries, kind="stable")
    return entries[order], tokens[order], order
