"""Drives one ``EngineCore`` by hand: builds messages for rows and sequences, reads results.

Plays the part of control for the conformance suites. The suites choose the page tables (any blocks
in any order, any bits), so the driver never allocates blocks itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from threading import Event
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import (
    I32,
    AdvanceRows,
    Batch,
    BatchOperation,
    CloseSequences,
    DistRows,
    DropTables,
    OpenSequence,
    ReadDisk,
    SwapIn,
    SwapOut,
    WriteDisk,
)
from quire.core.batch_result import BatchResult, SequenceEnd, SequenceTokens, TransfersEnded
from quire.core.decoding import GrammarSpec, SamplerSpec, StopSpec
from quire.core.ids import SequenceId, TableId
from quire.core.interfaces import EngineCore
from quire.testing.conformance.engine_rows import (
    Holder,
    RowSpec,
    SequenceOutput,
    forward_rows,
    gather,
    ints,
)

Logprobs = NDArray[np.float64]
"""Log probabilities over the whole vocabulary, by token id."""


class EngineDriver:
    """See the module docstring. Embed slots 0.. are used for the outputs of ``forward``."""

    def __init__(self, engine: EngineCore) -> None:
        self.engine = engine
        self.info = engine.info
        self.page_size = engine.info.pool.page_size
        self._serials = count()
        self._tables = count(1)
        self._transfers = count()
        self._rung = Event()
        engine.wake_by(self._rung.set)

    def execute(self, **stages: Any) -> BatchResult:
        """Send one message."""
        serial = next(self._serials)
        result = self.engine.execute(Batch(serial=serial, **stages))
        assert result.serial == serial, (
            f"message {serial} has the result of message {result.serial}"
        )
        return result

    def begin_swap_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> SwapOut:
        """The operation that begins to move these blocks."""
        return SwapOut(
            transfers=self._new_transfers(len(blocks)),
            blocks=ints(blocks),
            host_blocks=ints(host_blocks),
        )

    def begin_swap_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> SwapIn:
        return SwapIn(
            transfers=self._new_transfers(len(blocks)),
            host_blocks=ints(host_blocks),
            blocks=ints(blocks),
        )

    def _new_transfers(self, number: int) -> I32:
        return ints([next(self._transfers) for _ in range(number)])

    def end_transfers(self) -> list[int]:
        """Run transfers until none is in progress; returns those that ended, in order."""
        ended: list[int] = []
        while (some := self.engine.transfer()) is not None:
            assert isinstance(some, TransfersEnded), some
            ended += some.transfers.tolist()
        return ended

    def swap(self, operation: SwapOut | SwapIn) -> None:
        """Begin the transfers of ``operation`` and wait for their ends."""
        result = self.execute(operations=[operation])
        assert not result.failures, result.failures
        assert sorted(self.end_transfers()) == sorted(operation.transfers.tolist())

    def write_disk(
        self, tier: Literal["device", "host"], blocks: Sequence[int], disk_blocks: Sequence[int]
    ) -> list[int]:
        """Move blocks to the disk; returns the indices of those that failed."""
        return self._use_disk(
            WriteDisk(
                transfers=self._new_transfers(len(blocks)),
                tier=tier,
                blocks=ints(blocks),
                disk_blocks=ints(disk_blocks),
            )
        )

    def read_disk(self, disk_blocks: Sequence[int], blocks: Sequence[int]) -> list[int]:
        return self._use_disk(
            ReadDisk(
                transfers=self._new_transfers(len(blocks)),
                disk_blocks=ints(disk_blocks),
                blocks=ints(blocks),
            )
        )

    def _use_disk(self, operation: WriteDisk | ReadDisk) -> list[int]:
        """Begin the transfers of ``operation`` and wait until the engine rings with their ends."""
        self._rung.clear()
        result = self.execute(operations=[operation])
        assert not result.failures, result.failures
        transfers = operation.transfers.tolist()
        ended: list[int] = []
        failed: list[int] = []
        while len(ended) < len(transfers):
            some = self.engine.transfer()
            if some is None:
                assert self._rung.wait(60), f"of transfers {transfers} only {ended} have ended"
                self._rung.clear()
                continue
            assert isinstance(some, TransfersEnded), some
            ended += some.transfers.tolist()
            failed += [transfers.index(one) for one in some.failed.tolist()]
            assert bool(some.problem) == bool(len(some.failed)), some
        assert sorted(ended) == transfers
        return failed

    def holder(self, blocks: Sequence[int], num_written: int = 0) -> Holder:
        """A new table over ``blocks`` whose first slots are visible."""
        holder = Holder(
            TableId(next(self._tables)), self.page_size, list(blocks), [0] * len(blocks)
        )
        holder.show(0, num_written)
        return holder

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    # -- rows --------------------------------------------------------------------------------------

    def forward(
        self, rows: Sequence[RowSpec], operations: Sequence[BatchOperation] = ()
    ) -> list[Logprobs]:
        """Run rows as one message; returns the distribution after the last token of each.

        Tables are written first; afterwards the slots that the rows wrote are shown in their
        holders.
        """
        result = self.send_rows(rows, operations)
        assert not result.failures, result.failures
        for row in rows:
            if row.holder is not None:
                for slot in row.slots:
                    row.holder.show(slot, slot + 1)
        return [self.full_dist(result, index) for index in range(len(rows))]

    def send_rows(
        self,
        rows: Sequence[RowSpec],
        operations: Sequence[BatchOperation] = (),
        **stages: Any,
    ) -> BatchResult:
        """Send the message of ``forward`` with further stages and return its whole result."""
        tables = {row.holder.table: row.holder for row in rows if row.holder is not None}
        writes = [holder.write() for holder in tables.values()]
        last = [sum(len(row.positions) for row in rows[: i + 1]) - 1 for i in range(len(rows))]
        forward = forward_rows(rows)
        forward.outputs[last] = np.arange(len(rows))
        return self.execute(
            operations=[*operations, *writes],
            forward=forward,
            dists=DistRows(
                embeds=np.arange(len(rows), dtype=np.int32),
                top_k=np.full(len(rows), self.info.vocab_size, np.int32),
            ),
            **stages,
        )

    def full_dist(self, result: BatchResult, index: int) -> Logprobs:
        """Distribution ``index`` of a result that holds distributions over the whole vocabulary."""
        start, end = result.dist_starts[index : index + 2]
        assert end - start == self.info.vocab_size, "a distribution does not cover the vocabulary"
        logprobs = np.empty(self.info.vocab_size)
        probs = result.dist_probs[start:end].astype(np.float64)
        logprobs[result.dist_ids[start:end]] = np.log(np.maximum(probs, 1e-30))
        return logprobs

    def prefill(
        self,
        holder: Holder,
        tokens: Sequence[int],
        *,
        chunk: int | None = None,
        start: int = 0,
        adapter: int = -1,
    ) -> Logprobs:
        """Run ``tokens`` at positions and slots from ``start`` on; returns the distribution after
        them."""
        size = chunk or len(tokens)
        for first in range(0, len(tokens), size):
            part = tokens[first : first + size]
            span = range(start + first, start + first + len(part))
            (after,) = self.forward([RowSpec(holder, part, span, span, adapter=adapter)])
        return after

    # -- sequences ---------------------------------------------------------------------------------

    def open(
        self,
        sequence: int,
        holder: Holder,
        prompt: Sequence[int],
        stop: StopSpec,
        *,
        epoch: int = 1,
        sampler: SamplerSpec | None = None,
        grammar: GrammarSpec | None = None,
        num_logprobs: int | None = None,
        num_generated: int = 0,
        limit: int | None = None,
        adapter: int = -1,
    ) -> OpenSequence:
        """The operation for a sequence whose ``prompt`` is at slots and positions 0 onwards."""
        return OpenSequence(
            sequence=SequenceId(sequence),
            epoch=epoch,
            table=holder.table,
            cursor=len(prompt),
            limit=len(holder.blocks) * self.page_size if limit is None else limit,
            position=len(prompt),
            sampler=sampler or SamplerSpec(),
            stop=stop,
            grammar=grammar,
            num_logprobs=num_logprobs,
            history=ints(prompt),
            num_generated=num_generated,
            adapter=adapter,
        )

    def start(
        self, opened: OpenSequence, holder: Holder, *, num_steps: int = 1, from_slot: int = 0
    ) -> SequenceTokens:
        """Open a sequence and run its prompt from ``from_slot`` on; returns the first message's
        output."""
        prompt = opened.history.tolist()
        span = range(from_slot, len(prompt))
        row = RowSpec(
            holder,
            prompt[from_slot:],
            span,
            span,
            sequence=opened.sequence,
            adapter=opened.adapter,
        )
        holder.show(from_slot, len(prompt))
        result = self.execute(
            operations=[holder.write(), opened], forward=forward_rows([row]), num_steps=num_steps
        )
        assert not result.failures, result.failures
        assert result.sequences is not None
        return result.sequences

    def advance(
        self,
        sequences: Sequence[int],
        *,
        epochs: Sequence[int] | None = None,
        num_steps: int = 1,
        operations: Sequence[BatchOperation] = (),
    ) -> SequenceTokens:
        """One message that advances ``sequences``."""
        result = self.execute(
            operations=list(operations),
            num_steps=num_steps,
            advance=AdvanceRows(
                sequences=ints(sequences),
                epochs=ints(epochs or [1] * len(sequences)),
                max_steps=ints([num_steps] * len(sequences)),
            ),
        )
        assert not result.failures, result.failures
        assert result.sequences is not None
        return result.sequences

    def decode(
        self,
        blocks: Sequence[int],
        prompt: Sequence[int],
        stop: StopSpec,
        *,
        num_steps: int = 1,
        sequence: int = 0,
        **options: Any,
    ) -> SequenceOutput:
        """A whole decode from open to close over fresh pages."""
        holder = self.holder(blocks)
        opened = self.open(sequence, holder, prompt, stop, **options)
        decoded = SequenceOutput()
        gather(decoded, self.start(opened, holder, num_steps=num_steps), 0)
        while decoded.end is SequenceEnd.RUNNING:
            gather(decoded, self.advance([sequence], num_steps=num_steps), 0)
        self.close_sequence(sequence, holder)
        return decoded

    def close_sequence(self, sequence: int, holder: Holder) -> None:
        self.execute(
            operations=[
                CloseSequences(sequences=[SequenceId(sequence)]),
                DropTables(tables=[holder.table]),
            ]
        )
