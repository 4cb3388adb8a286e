"""Decode state of all sequences, as a structure of arrays: one row per sequence id.

A step over many sequences reads and writes whole columns; only state that does not fit a column
(samplers, grammars, byte-string matchers, histories) is kept as objects. Control chooses the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32, OpenSequence
from quire.core.batch_result import SequenceEnd
from quire.core.decoding import SamplerSpec
from quire.core.errors import InvalidArgument, QuireError, UnknownHandle
from quire.engine.kv_cache.page_tables import NO_TABLE
from quire.engine.sampling.grammar_matchers import ConfinedMatcher
from quire.engine.stopping import ByteStopMatcher

I64 = NDArray[np.int64]

NO_TOKEN = -1

_RUNNING = int(SequenceEnd.RUNNING)
"""A plain int, because NumPy compares columns with enum members slowly, and does so in every
step."""


class TokenHistory:
    """The tokens of a sequence, prompt and output, in a growing array.

    Maintained for sequences whose sampler uses the history.
    """

    __slots__ = ("_tokens", "length", "num_generated")

    def __init__(self, tokens: I32, num_generated: int) -> None:
        self._tokens = np.array(tokens, np.int32)
        self.length = len(tokens)
        self.num_generated = num_generated

    @property
    def tokens(self) -> I32:
        return self._tokens[: self.length]

    @property
    def generated(self) -> I32:
        return self._tokens[self.length - self.num_generated : self.length]

    def append(self, tokens: I32) -> None:
        """Add sampled tokens."""
        end = self.length + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens), 16), np.int32)
            grown[: self.length] = self.tokens
            self._tokens = grown
        self._tokens[self.length : end] = tokens
        self.length = end
        self.num_generated += len(tokens)


@dataclass(slots=True)
class SequenceObjects:
    """The part of a sequence's state that is not a column."""

    sampler: SamplerSpec
    history: TokenHistory
    strings: ByteStopMatcher | None = None
    grammar: ConfinedMatcher | None = None
    failure: QuireError | None = None


class Sequences:
    """Columns of length ``max_sequences``; ``is_open``: which rows hold a sequence.

    ``table`` is the row of its page table in ``PageTables``. ``cursor`` and ``position`` are those
    of the next token to append; ``last_token`` is that token, or ``NO_TOKEN`` before the first one
    was sampled. ``stop_tokens`` is padded with ``NO_TOKEN``. ``is_watched`` rows have a grammar or
    stop strings, which check every token. ``is_plain`` rows have sampled before, and their tokens
    need no check outside of a runner's own loop. ``num_opened`` counts all sequences that were ever
    opened.
    """

    def __init__(self, max_sequences: int) -> None:
        def column() -> I64:
            return np.zeros(max_sequences, np.int64)

        self.capacity = max_sequences
        self.num_opened = 0
        self.is_open = np.zeros(max_sequences, np.bool_)
        self.epoch, self.table = column(), column()
        self.cursor, self.limit, self.position = column(), column(), column()
        self.last_token, self.num_generated = column(), column()
        self.max_tokens, self.min_tokens = column(), column()
        self.end, self.matched = column(), column()
        self.num_logprobs, self.adapter = column(), column()
        self.is_watched = np.zeros(max_sequences, np.bool_)
        self.is_plain = np.zeros(max_sequences, np.bool_)
        self.stop_tokens = np.full((max_sequences, 1), NO_TOKEN, np.int64)
        self._num_stops = column()
        self._objects: list[SequenceObjects | None] = [None] * max_sequences

    def __len__(self) -> int:
        return int(self.is_open.sum())

    def objects(self, sequence: int) -> SequenceObjects:
        objects = self._objects[sequence]
        assert objects is not None, f"sequence {sequence} is not open"
        return objects

    def are_open(self, sequences: NDArray[np.integer]) -> NDArray[np.bool_]:
        inside = (sequences >= 0) & (sequences < self.capacity)
        if inside.all():
            are_open: NDArray[np.bool_] = self.is_open[sequences]
            return are_open
        return inside & self.is_open[np.where(inside, sequences, 0)]

    def check_open(self, sequence: int) -> None:
        """Raise ``UnknownHandle`` unless ``sequence`` is open."""
        if not (0 <= sequence < self.capacity and self.is_open[sequence]):
            raise UnknownHandle(
                f"sequence {sequence} is not open (of at most {self.capacity}): open it first",
                sequence=sequence,
            )

    def open(self, operation: OpenSequence, table_row: int, objects: SequenceObjects) -> None:
        """Initialise row ``operation.sequence``.

        Raises:
            InvalidArgument: the row is out of range or in use, or its figures are contradictory.
        """
        row = int(operation.sequence)
        if not 0 <= row < self.capacity or self.is_open[row]:
            raise InvalidArgument(
                f"sequence {row} cannot be opened: it is in use, or not below {self.capacity}"
            )
        self._objects[row] = objects
        self.num_opened += 1
        self.is_open[row] = True
        self.epoch[row], self.table[row] = operation.epoch, table_row
        self.cursor[row], self.limit[row] = operation.cursor, operation.limit
        self.position[row] = operation.position
        self.last_token[row] = NO_TOKEN
        self.num_generated[row] = operation.num_generated
        self.max_tokens[row] = operation.stop.max_tokens
        self.min_tokens[row] = operation.stop.min_tokens
        self.end[row], self.matched[row] = SequenceEnd.RUNNING, NO_TOKEN
        self.num_logprobs[row] = -1 if operation.num_logprobs is None else operation.num_logprobs
        self.adapter[row] = operation.adapter
        self.is_watched[row] = objects.grammar is not None or objects.strings is not None
        self.is_plain[row] = False
        self._set_stop_tokens(row, operation.stop.token_ids)

    def forget_table(self, table_row: int) -> None:
        """The table was dropped: sequences that still append to it have no free slots."""
        self.table[self.table == table_row] = NO_TABLE

    def extend(self, sequence: int, limit: int) -> None:
        self.check_open(sequence)
        self.limit[sequence] = limit

    def close(self, sequence: int) -> None:
        self.check_open(sequence)
        self.is_open[sequence] = False
        if (grammar := self.objects(sequence).grammar) is not None:
            grammar.close()
        self._objects[sequence] = None

    def running(self, sequences: I64) -> NDArray[np.bool_]:
        still: NDArray[np.bool_] = self.end[sequences] == _RUNNING
        return still

    def stop_tokens_of(self, sequences: I64) -> I64:
        """The stop tokens of these rows, no wider than the most that one of them has: others have
        made ``stop_tokens`` as wide as it is."""
        width = max(1, int(self._num_stops[sequences].max(initial=0)))
        stop_tokens: I64 = self.stop_tokens[sequences, :width]
        return stop_tokens

    def append(self, sequences: I64, counts: I64) -> None:
        """Advance cursors and positions by ``counts`` tokens that were written."""
        self.cursor[sequences] += counts
        self.position[sequences] += counts

    def finish(self, sequences: I64, end: SequenceEnd) -> None:
        self.end[sequences] = int(end)

    def _set_stop_tokens(self, row: int, token_ids: tuple[int, ...]) -> None:
        width = self.stop_tokens.shape[1]
        if len(token_ids) > width:
            pad = np.full((self.capacity, len(token_ids) - width), NO_TOKEN, np.int64)
            self.stop_tokens = np.concatenate((self.stop_tokens, pad), axis=1)
        self.stop_tokens[row] = NO_TOKEN
        self.stop_tokens[row, : len(token_ids)] = token_ids
        self._num_stops[row] = len(token_ids)
