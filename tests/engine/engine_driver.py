"""Sends messages to an engine as control would, and reads log probabilities back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import (
    AdvanceRows,
    Batch,
    CloseSequences,
    DistRows,
    ExplicitMask,
    ForwardRows,
    OpenSequence,
    SampleRows,
    WriteTable,
)
from quire.core.batch_result import BatchResult, SequenceEnd
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.engine_info import EngineInfo
from quire.core.ids import SequenceId, TableId
from quire.core.interfaces import EngineCore

GREEDY = SamplerSpec()


def i32(values: Any) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@dataclass
class Row:
    """One forward row. By default it has no slots, and positions 0, 1, ..."""

    tokens: Sequence[int]
    table: int = -1
    positions: Sequence[int] | None = None
    slots: Sequence[int] | None = None
    sequence: int = -1
    mask: NDArray[np.bool_] | None = None


@dataclass
class Output:
    """What a sequence sampled and how it ended."""

    tokens: list[int] = field(default_factory=list)
    end: SequenceEnd = SequenceEnd.RUNNING
    matched: int = -1
    logprobs: list[float] = field(default_factory=list)
    tops: list[dict[int, float]] = field(default_factory=list)


def forward_rows(rows: Sequence[Row], *, outputs: bool = True) -> ForwardRows:
    """Rows as one ragged batch; its token t writes its hidden state to embed t."""
    lengths = [len(row.tokens) for row in rows]
    tokens = [token for row in rows for token in row.tokens]
    positions = [
        p for r in rows for p in (range(len(r.tokens)) if r.positions is None else r.positions)
    ]
    slots = [s for r in rows for s in ([-1] * len(r.tokens) if r.slots is None else r.slots)]
    masks = [
        ExplicitMask(row=i, num_columns=row.mask.shape[1], bits=np.packbits(row.mask))
        for i, row in enumerate(rows)
        if row.mask is not None
    ]
    return ForwardRows(
        row_starts=i32(np.cumsum([0, *lengths])),
        tables=i32([row.table for row in rows]),
        sequences=i32([row.sequence for row in rows]),
        tokens=i32(tokens),
        embeds=i32([-1] * len(tokens)),
        positions=i32([positions]),
        slots=i32([slots]),
        outputs=i32(range(len(tokens)) if outputs else [-1] * len(tokens)),
        masks=masks,
    )


class Driver:
    """One engine and its step counter."""

    def __init__(self, engine: EngineCore) -> None:
        self.engine = engine
        self.step = 0

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    @property
    def page_size(self) -> int:
        return self.engine.info.pool.page_size

    def send(self, **fields: Any) -> BatchResult:
        """Run one message."""
        batch = Batch(serial=self.step, **fields)
        self.step += 1
        return self.engine.execute(batch)

    def good(self, **fields: Any) -> BatchResult:
        """Run one message in which no row may fail."""
        result = self.send(**fields)
        assert result.failures == []
        return result

    def end_transfers(self) -> None:
        while self.engine.transfer() is not None:
            pass

    def write_table(
        self, table: int, blocks: Sequence[int], slots: Sequence[int] = ()
    ) -> WriteTable:
        """A table over ``blocks`` in which these slots (entry * page_size + offset) are visible."""
        visible = np.zeros(len(blocks), np.uint64)
        for slot in slots:
            entry, offset = divmod(slot, self.page_size)
            visible[entry] |= np.uint64(1 << offset)
        return WriteTable(table=TableId(table), start=0, blocks=i32(blocks), visible=visible)

    def flat(self, blocks: Sequence[int], entries: Sequence[int]) -> list[int]:
        """Flat slots of table slots (entry * page_size + offset)."""
        size = self.page_size
        return [int(blocks[e // size]) * size + e % size for e in entries]

    def num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def logprobs(self, rows: Sequence[Row], operations: Sequence[Any] = ()) -> NDArray[np.float64]:
        """Log probabilities ``[T, V]`` after every token of the rows."""
        forward = forward_rows(rows)
        num_tokens, vocab_size = len(forward.tokens), self.info.vocab_size
        result = self.good(
            operations=list(operations),
            forward=forward,
            dists=DistRows(embeds=i32(range(num_tokens)), top_k=i32([vocab_size] * num_tokens)),
        )
        logprobs = np.empty((num_tokens, vocab_size))
        ids = result.dist_ids.reshape(num_tokens, vocab_size)
        probs = result.dist_probs.reshape(num_tokens, vocab_size).astype(np.float64)
        np.put_along_axis(logprobs, ids.astype(np.int64), np.log(probs), axis=1)
        return logprobs

    def open(
        self,
        sequence: int,
        prompt: Sequence[int],
        blocks: Sequence[int],
        *,
        sampler: SamplerSpec = GREEDY,
        stop: StopSpec | None = None,
        epoch: int = 1,
        num_generated: int = 0,
        **fields: Any,
    ) -> tuple[list[Any], Row]:
        """Operations and row that start a sequence over a new table with the same number."""
        length = len(prompt)
        operations = [
            self.write_table(sequence, blocks, range(length)),
            OpenSequence(
                sequence=SequenceId(sequence),
                epoch=epoch,
                table=TableId(sequence),
                cursor=length,
                limit=fields.pop("limit", len(blocks) * self.page_size),
                position=length,
                sampler=sampler,
                stop=stop or StopSpec(max_tokens=16),
                history=i32(prompt),
                num_generated=num_generated,
                **fields,
            ),
        ]
        slots = self.flat(blocks, range(length))
        return operations, Row(prompt, sequence, range(length), slots, sequence)

    def advance(self, sequences: Sequence[int], steps: int, epoch: int = 1) -> AdvanceRows:
        count = len(sequences)
        return AdvanceRows(
            sequences=i32(sequences), epochs=i32([epoch] * count), max_steps=i32([steps] * count)
        )

    def collect(self, result: BatchResult, outputs: dict[int, Output]) -> None:
        """Add a result's tokens to the outputs by sequence."""
        report = result.sequences
        assert report is not None
        for index, sequence in enumerate(report.sequences.tolist()):
            output = outputs.setdefault(sequence, Output())
            span = slice(*report.token_starts[index : index + 2])
            output.tokens += report.tokens[span].tolist()
            output.end = SequenceEnd(report.ends[index])
            output.matched = int(report.matched[index])
            if len(report.logprobs):
                output.logprobs += report.logprobs[span].tolist()
                output.tops += [
                    dict(zip(ids[ids >= 0].tolist(), top.tolist(), strict=False))
                    for ids, top in zip(
                        report.top_ids[span], report.top_logprobs[span], strict=True
                    )
                ]

    def decode(
        self, started: Sequence[tuple[list[Any], Row]], *, num_steps: int = 4
    ) -> dict[int, Output]:
        """Run sequences to their ends, ``num_steps`` per message, and close them."""
        outputs: dict[int, Output] = {}
        rows = [row for _, row in started]
        result = self.send(
            num_steps=num_steps,
            operations=[operation for operations, _ in started for operation in operations],
            forward=forward_rows(rows, outputs=False),
        )
        self.collect(result, outputs)
        while running := [s for s, o in outputs.items() if o.end is SequenceEnd.RUNNING]:
            result = self.send(num_steps=num_steps, advance=self.advance(running, num_steps))
            self.collect(result, outputs)
        self.good(operations=[CloseSequences(sequences=[SequenceId(s) for s in outputs])])
        return outputs

    def sample(
        self, embeds: Sequence[int], sampler: SamplerSpec, positions: Sequence[int]
    ) -> list[int]:
        """One token after each embed, all with one sampler."""
        count = len(embeds)
        result = self.good(
            samples=SampleRows(
                embeds=i32(embeds),
                sampler_index=i32([0] * count),
                samplers=[sampler],
                positions=i32(positions),
                token_slots=i32([-1] * count),
            )
        )
        return result.samples.tolist()
