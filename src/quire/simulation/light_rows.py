"""The rows of one message of a ``LightEngine``: the sequences that it names, and its result.

Owns the arrays of results, and which of them need not be made anew: with few rows to a message,
conversions take most of an engine's time. Must not know how sequences go on.
"""

from __future__ import annotations

import numpy as np

from quire.core.batch import F32, I32, AdvanceRows, Batch, DistRows
from quire.core.batch_result import BatchResult, RowFailure, SequenceEnd, SequenceTokens
from quire.core.errors import ErrorRecord, InvalidArgument

RUNNING = int(SequenceEnd.RUNNING)
"""The end as the number in a result: an array of members of an enum takes ten times as long."""


class NamedSequences:
    """The sequences of one message in the order of its result, their epochs and their steps."""

    __slots__ = ("epochs", "sequences", "steps")

    def __init__(self, sequences: list[int], epochs: list[int], steps: list[int]) -> None:
        self.sequences = sequences
        self.epochs = epochs
        self.steps = steps


class AdvancedSequences:
    """The sequences that a message advances, and their arrays: control sends the same array objects
    again while the same sequences go on, and so they are read once."""

    __slots__ = ("_rows", "named")

    def __init__(self, rows: AdvanceRows) -> None:
        self._rows = rows
        self.named = NamedSequences(
            rows.sequences.tolist(), rows.epochs.tolist(), rows.max_steps.tolist()
        )

    def is_of(self, rows: AdvanceRows) -> bool:
        own = self._rows
        is_same = own.epochs is rows.epochs and own.sequences is rows.sequences
        return is_same and own.max_steps is rows.max_steps


class Runs:
    """The outcome of the sequences of one message, in order. ``starts``: of the tokens of each.
    ``num_first``: rows of the first step. ``num_context``: tokens that their rows attended to.
    ``is_even``: each has got one token and goes on."""

    __slots__ = ("ends", "is_even", "most_steps", "num_context", "num_first", "starts", "tokens")

    def __init__(self) -> None:
        self.is_even = True
        self.tokens: list[int] = []
        self.starts = [0]
        self.ends: list[int] = []
        self.most_steps = 0
        self.num_first = 0
        self.num_context = 0


class ReportMaker:
    """Makes the reports of sequences. ``_even``: the arrays of messages in which each of so many
    sequences has got one token and goes on."""

    def __init__(self) -> None:
        self._even: dict[int, tuple[I32, I32, I32]] = {}

    def make(self, batch: Batch, named: NamedSequences, runs: Runs) -> SequenceTokens:
        """Make the report. With few rows conversions take most of the time: so there is one for all
        arrays, or one for the tokens alone if the rest is known."""
        num, advance = len(named.sequences), batch.advance
        if runs.is_even and batch.forward is None and advance is not None:
            ends, matched, starts = self._even_arrays(num)
            return SequenceTokens(
                sequences=advance.sequences,
                epochs=advance.epochs,
                ends=ends,
                matched=matched,
                token_starts=starts,
                tokens=np.fromiter(runs.tokens, np.int32, num),
            )
        values = [*named.sequences, *named.epochs, *runs.ends, *[-1] * num]
        values += runs.starts + runs.tokens
        array: I32 = np.fromiter(values, np.int32, len(values))
        return SequenceTokens(
            sequences=array[:num],
            epochs=array[num : 2 * num],
            ends=array[2 * num : 3 * num],
            matched=array[3 * num : 4 * num],
            token_starts=array[4 * num : 5 * num + 1],
            tokens=array[5 * num + 1 :],
        )

    def _even_arrays(self, num: int) -> tuple[I32, I32, I32]:
        """The ``ends``, ``matched`` and ``token_starts`` of ``num`` sequences that have got one
        token each and go on. The arrays must not be changed."""
        found = self._even.get(num)
        if found is None:
            ends: I32 = np.full(num, RUNNING, np.int32)
            matched: I32 = np.full(num, -1, np.int32)
            starts: I32 = np.arange(num + 1, dtype=np.int32)
            for array in (ends, matched, starts):
                array.flags.writeable = False
            found = self._even[num] = ends, matched, starts
        return found


def add_dists(result: BatchResult, rows: DistRows) -> None:
    """Add a uniform distribution over the first tokens, as many as were requested, for each of
    ``rows``."""
    sizes = rows.top_k.tolist()
    result.dist_starts = np.cumsum([0, *sizes], dtype=np.int32)
    result.dist_ids = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    probs: list[F32] = [np.full(size, 1.0 / size, np.float32) for size in sizes]
    result.dist_probs = np.concatenate(probs)


def unscored(batch: Batch) -> list[RowFailure]:
    """Failures for rows that ask for log probabilities or attention, which do not exist here."""
    forward = batch.forward
    if forward is None:
        return []
    asks = set(forward.attention_rows.tolist())
    if len(forward.score_targets):
        starts = forward.row_starts.tolist()
        asks |= {
            row
            for row in range(len(starts) - 1)
            if (forward.score_targets[starts[row] : starts[row + 1]] >= 0).any()
        }
    return [RowFailure(stage="forward", index=row, error=_no_scores()) for row in sorted(asks)]


def _no_scores() -> ErrorRecord:
    return InvalidArgument(
        "a simulated engine computes no log probabilities and no attention scores: leave them out"
    ).record()
