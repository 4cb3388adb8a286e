"""Sequences within one message of the fake engine: first tokens, decode steps, their report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.core.batch import F32, I32, U64, AdvanceRows, ForwardRows
from quire.core.batch_result import NO_F32, NO_F32_ROWS, NO_I32_ROWS, SequenceEnd, SequenceTokens
from quire.testing.fake_engine.context import MessageContext
from quire.testing.fake_engine.hashing import embed_tokens
from quire.testing.fake_engine.rows import FakeRow, RowResult
from quire.testing.fake_engine.sequences import EmittedToken, FakeSequence
from quire.testing.fake_engine.violations import require


@dataclass(frozen=True, slots=True)
class _Entry:
    """A sequence of the message; ``state`` is None for a skipped row. ``stage``, ``index``: where
    its failure is reported."""

    sequence: int
    epoch: int
    state: FakeSequence | None
    stage: str
    index: int
    num_steps: int


class AdvanceStage:
    """Collects the message's sequences in order, advances them, reports their tokens."""

    def __init__(self, context: MessageContext, num_steps: int) -> None:
        self._context = context
        self._num_steps = num_steps
        self._entries: list[_Entry] = []

    def first_tokens(self, forward: ForwardRows, done: dict[int, RowResult]) -> None:
        """Sample after the rows that name a sequence; this is the sequence's first step."""
        for index, sequence in enumerate(forward.sequences.tolist()):
            if sequence < 0:
                continue
            state = self._context.sequence(sequence, f"forward row {index}")
            require(
                state.running and state.last_token is None,
                f"forward row {index} names sequence {sequence}, which has tokens already",
            )
            self._entries.append(
                _Entry(sequence, state.opened.epoch, state, "forward", index, self._num_steps - 1)
            )
            if index not in done:
                state.finish(SequenceEnd.FAILED)
                continue
            end = int(forward.positions[0, forward.row_starts[index + 1] - 1]) + 1
            require(
                end == state.position,
                f"sequence {sequence} appends at position {state.position}; its row ends at {end}",
            )
            self._sample(self._entries[-1], state, done[index].hidden[-1:])

    def advance(self, rows: AdvanceRows | None) -> None:
        """Run the decode steps. Rows whose sequence ended or whose epoch is stale are skipped."""
        if rows is not None:
            self._add(rows)
        for step in range(self._num_steps):
            running = [
                (entry, entry.state)
                for entry in self._entries
                if entry.state is not None and entry.state.running and step < entry.num_steps
            ]
            self._step([(entry, state) for entry, state in running if _has_room(state)])

    def report(self) -> SequenceTokens | None:
        """The tokens of the message's sequences, None if it had none."""
        if not self._entries:
            return None
        states = [entry.state for entry in self._entries]
        emitted = [[] if state is None else state.emitted for state in states]
        flat = [token for tokens in emitted for token in tokens]
        logprobs, top_ids, top_logprobs = _logprobs(states, flat)
        ends = [SequenceEnd.RUNNING if state is None else state.end for state in states]
        return SequenceTokens(
            sequences=np.array([entry.sequence for entry in self._entries], np.int32),
            epochs=np.array([entry.epoch for entry in self._entries], np.int32),
            token_starts=np.cumsum([0, *map(len, emitted)]).astype(np.int32),
            tokens=np.array([token.token for token in flat], np.int32),
            ends=np.array(ends, np.int32),
            matched=np.array([-1 if s is None else s.matched for s in states], np.int32),
            logprobs=logprobs,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
        )

    def _add(self, rows: AdvanceRows) -> None:
        num_rows = len(rows.sequences)
        require(
            len(rows.epochs) == num_rows and len(rows.max_steps) == num_rows,
            "AdvanceRows differ in length",
        )
        for index, sequence in enumerate(rows.sequences.tolist()):
            require(
                sequence not in [entry.sequence for entry in self._entries],
                f"sequence {sequence} stands twice in one message",
            )
            state = self._context.sequence(sequence, f"advance row {index}")
            epoch, steps = int(rows.epochs[index]), int(rows.max_steps[index])
            if not state.running or state.opened.epoch != epoch:
                self._entries.append(_Entry(sequence, epoch, None, "advance", index, 0))
                continue
            require(
                state.last_token is not None,
                f"advance row {index}: sequence {sequence} has no first token yet",
            )
            self._entries.append(_Entry(sequence, epoch, state, "advance", index, steps))

    def _step(self, active: list[tuple[_Entry, FakeSequence]]) -> None:
        memory = self._context.memory
        rows = [self._append_row(state) for _, state in active]
        blocks = [int(row.slots[0]) // memory.page_size for row in rows]
        twice = sorted({block for block in blocks if blocks.count(block) > 1})
        require(not twice, f"blocks {twice} are appended to by two sequences")
        for (entry, state), done in zip(active, self._context.run_rows(rows), strict=True):
            column, offset = divmod(state.cursor, memory.page_size)
            memory.table(state.opened.table).visible[column] |= np.uint64(1 << offset)
            state.cursor += 1
            state.position += 1
            self._sample(entry, state, done.hidden[-1:])

    def _append_row(self, state: FakeSequence) -> FakeRow:
        """The row that runs the sequence's last token."""
        sequence, memory = state.opened.sequence, self._context.memory
        table = memory.table(state.opened.table)
        column, offset = divmod(state.cursor, memory.page_size)
        require(
            column < len(table.blocks),
            f"sequence {sequence} appends at entry {column}; its table has {len(table.blocks)}",
        )
        require(
            not int(table.visible[column]) >> offset & 1,
            f"sequence {sequence} appends over a visible slot: entry {column}, offset {offset}",
        )
        token = np.array([state.last_token], np.int32)
        return FakeRow(
            name=f"sequence {sequence}",
            contents=embed_tokens(token),
            tokens=token,
            positions=np.array([state.position], np.int32),
            slots=np.array([int(table.blocks[column]) * memory.page_size + offset], np.int32),
            table=table,
            adapter=state.opened.adapter,
        )

    def _sample(self, entry: _Entry, state: FakeSequence, hidden: U64) -> None:
        """Sample one token of a sequence; with ``max_tokens=0`` it ends without one."""

        def take() -> None:
            if state.failure is not None:
                raise state.failure
            if state.stop.exhausted:
                state.finish(SequenceEnd.MAX_TOKENS)
            else:
                state.take(self._context.logits_of(hidden)[0], self._context.tokenizer)

        if not self._context.attempt(entry.stage, entry.index, take):
            state.finish(SequenceEnd.FAILED)


def _has_room(state: FakeSequence) -> bool:
    """Whether the sequence has a free slot to append to; without one it ends."""
    if state.cursor >= state.limit:
        state.finish(SequenceEnd.NO_ROOM)
    return state.running


def _logprobs(
    states: list[FakeSequence | None], emitted: list[EmittedToken]
) -> tuple[F32, I32, F32]:
    """``logprobs`` [N], ``top_ids`` and ``top_logprobs`` [N, K]; all empty if no sequence asked."""
    asked = [
        state.opened.num_logprobs
        for state in states
        if state is not None and state.opened.num_logprobs is not None
    ]
    if not asked:
        return NO_F32, NO_I32_ROWS, NO_F32_ROWS
    shape = (len(emitted), max(asked))
    top_ids, top_logprobs = np.full(shape, -1, np.int32), np.full(shape, np.nan, np.float32)
    for i, token in enumerate(emitted):
        top_ids[i, : len(token.top_ids)] = token.top_ids
        top_logprobs[i, : len(token.top_ids)] = token.top_logprobs
    return np.array([token.logprob for token in emitted], np.float32), top_ids, top_logprobs
