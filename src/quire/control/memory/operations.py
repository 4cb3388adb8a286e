"""The memory operations of the message being built, in the order in which they were decided.

Owns the merging of neighbours of one kind into one array operation; order is never changed.
"""

from __future__ import annotations

import numpy as np

from quire.core.batch import (
    BatchOperation,
    CloseSequences,
    CopySlots,
    DropTables,
    SwapIn,
    SwapOut,
    WriteEntries,
)
from quire.core.ids import BlockId, HostBlockId, SequenceId, TableId

_SWAPS = (SwapOut, SwapIn)
_ARE_COMPARED = (SwapOut, SwapIn, CopySlots)
"""What they name is looked up for each that follows, which a list would make quadratic."""


class OperationList:
    """Collects operations; ``take`` hands them over and starts again."""

    def __init__(self) -> None:
        self._operations: list[BatchOperation] = []
        self._kind: type | None = None
        self._left: list[int] = []
        self._right: list[int] = []
        self._named_left: set[int] = set()
        self._named_right: set[int] = set()
        self._words: list[int] = []
        self._blocks: list[int] = []

    def __len__(self) -> int:
        return len(self._operations) + (self._kind is not None)

    def add(self, operation: BatchOperation) -> None:
        self._flush()
        self._operations.append(operation)

    def swap_out(self, block: BlockId, host_block: HostBlockId) -> None:
        self._pair(SwapOut, block, host_block)

    def swap_in(self, host_block: HostBlockId, block: BlockId) -> None:
        self._pair(SwapIn, host_block, block)

    def copy_slots(self, source: int, target: int, num_slots: int) -> None:
        """Copy ``num_slots`` flat slots from ``source`` on to ``target`` on."""
        # Within one operation the engine is free to gather before it scatters: a copy that reads
        # or writes what one before it wrote is an operation of its own.
        sources, targets = range(source, source + num_slots), range(target, target + num_slots)
        written = self._named_right
        if self._kind is CopySlots and not (
            written.isdisjoint(sources) and written.isdisjoint(targets)
        ):
            self._flush()
        for offset in range(num_slots):
            self._pair(CopySlots, source + offset, target + offset)

    def write_entry(self, table: TableId, entry: int, block: BlockId, word: int) -> None:
        """Set an entry of a table and its visibility word; those behind it are cut off."""
        self._pair(WriteEntries, table, entry)
        self._blocks.append(block)
        self._words.append(word)

    def close_sequence(self, sequence: SequenceId) -> None:
        self._pair(CloseSequences, sequence, 0)

    def drop_table(self, table: TableId) -> None:
        self._pair(DropTables, table, 0)

    def take(self) -> list[BatchOperation]:
        self._flush()
        taken, self._operations = self._operations, []
        return taken

    def _pair(self, kind: type, left: int, right: int) -> None:
        # A swap may reuse a block that the swap before it read or wrote.
        is_again = kind in _SWAPS and (left in self._named_left or right in self._named_right)
        if kind is not self._kind or is_again:
            self._flush()
            self._kind = kind
        self._left.append(left)
        self._right.append(right)
        if kind in _ARE_COMPARED:
            self._named_left.add(left)
            self._named_right.add(right)

    def _flush(self) -> None:
        kind, self._kind = self._kind, None
        left, self._left = self._left, []
        right, self._right = self._right, []
        if kind in _ARE_COMPARED:
            self._named_left, self._named_right = set(), set()
        if kind is CloseSequences:
            self._operations.append(CloseSequences(sequences=[SequenceId(i) for i in left]))
        elif kind is DropTables:
            self._operations.append(DropTables(tables=[TableId(i) for i in left]))
        elif kind is WriteEntries:
            self._operations.append(
                WriteEntries(
                    tables=np.array(left, np.int32),
                    entries=np.array(right, np.int32),
                    blocks=np.array(self._blocks, np.int32),
                    visible=np.array(self._words, np.uint64),
                )
            )
            self._blocks, self._words = [], []
        elif kind is not None:
            self._operations.append(_arrays(kind, left, right))


def _arrays(kind: type, left: list[int], right: list[int]) -> BatchOperation:
    first, second = np.array(left, np.int32), np.array(right, np.int32)
    if kind is SwapOut:
        return SwapOut(blocks=first, host_blocks=second)
    if kind is SwapIn:
        return SwapIn(host_blocks=first, blocks=second)
    return CopySlots(source=first, target=second)


__all__ = ["OperationList"]
