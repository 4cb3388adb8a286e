"""Page tables, rows and outputs of sequences on the side that writes batch messages.

Values and pure functions for ``engine_driver`` and the suites; they know no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32, ExplicitMask, ForwardRows, WriteTable
from quire.core.batch_result import SequenceEnd, SequenceTokens
from quire.core.ids import TableId


def ints(values: Sequence[int]) -> I32:
    return np.array(values, np.int32)


@dataclass(slots=True)
class Holder:
    """A page table on its holder's side. Slots are counted entry * page_size + offset."""

    table: TableId
    page_size: int
    blocks: list[int]
    visible: list[int]

    def show(self, start: int, end: int) -> None:
        """Set the bits of slots ``start`` to ``end - 1``."""
        for slot in range(start, end):
            self.visible[slot // self.page_size] |= 1 << slot % self.page_size

    def hide(self, start: int, end: int) -> None:
        for slot in range(start, end):
            self.visible[slot // self.page_size] &= ~(1 << slot % self.page_size)

    def flat(self, slots: Sequence[int]) -> list[int]:
        """The flat slots in the pool."""
        size = self.page_size
        return [self.blocks[slot // size] * size + slot % size for slot in slots]

    def write(self) -> WriteTable:
        """The operation that makes the engine's table equal to this one."""
        visible = np.array(self.visible, np.uint64)
        return WriteTable(table=self.table, start=0, blocks=ints(self.blocks), visible=visible)


@dataclass(slots=True)
class RowSpec:
    """One forward row. ``slots``: where in ``holder`` the tokens are written (empty: not kept).

    ``tokens`` are token values; ``embeds`` replace them where given. ``mask``: [T][columns].
    """

    holder: Holder | None
    tokens: Sequence[int]
    positions: Sequence[int]
    slots: Sequence[int] = ()
    embeds: Sequence[int] = ()
    mask: NDArray[np.bool_] | None = None
    sequence: int = -1
    adapter: int = -1


@dataclass(slots=True)
class SequenceOutput:
    """The output of a sequence so far."""

    tokens: list[int] = field(default_factory=list)
    end: SequenceEnd = SequenceEnd.RUNNING
    matched: int = -1
    logprobs: list[float] = field(default_factory=list)


def gather(decoded: SequenceOutput, report: SequenceTokens, index: int) -> None:
    """Add the output of sequence ``index`` of a message."""
    start, end = report.token_starts[index : index + 2]
    decoded.tokens += report.tokens[start:end].tolist()
    if len(report.logprobs):
        decoded.logprobs += report.logprobs[start:end].tolist()
    decoded.end = SequenceEnd(report.ends[index])
    decoded.matched = int(report.matched[index])


def forward_rows(rows: Sequence[RowSpec]) -> ForwardRows:
    """Rows as flat arrays, without outputs."""
    lengths = [len(row.positions) for row in rows]
    num_tokens = sum(lengths)
    tokens, embeds, positions, slots = [], [], [], []
    masks = []
    adapters = [row.adapter for row in rows]
    for index, row in enumerate(rows):
        num_new = len(row.positions)
        tokens += list(row.tokens) or [0] * num_new
        embeds += list(row.embeds) or [-1] * num_new
        positions += list(row.positions)
        slots += row.holder.flat(row.slots) if row.holder and row.slots else [-1] * num_new
        if row.mask is not None:
            bits = np.packbits(row.mask)
            masks.append(ExplicitMask(row=index, num_columns=row.mask.shape[1], bits=bits))
    return ForwardRows(
        row_starts=ints([0, *np.cumsum(lengths).tolist()]),
        tables=ints([-1 if row.holder is None else row.holder.table for row in rows]),
        sequences=ints([row.sequence for row in rows]),
        tokens=ints(tokens),
        embeds=ints(embeds),
        positions=ints(positions)[None],
        slots=ints(slots)[None],
        outputs=np.full(num_tokens, -1, np.int32),
        masks=masks,
        adapters=ints(adapters if any(adapter >= 0 for adapter in adapters) else []),
    )
