"""The memory operations of the message being built.

Owns merging adjacent operations of one kind into one array operation; the order never changes.
Swaps are gathered into one operation for each direction: a message only begins them, and their
blocks are not used before they have ended, so their order among the other operations does not
matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.batch import (
    I32,
    BatchOperation,
    CloseSequences,
    CopySlots,
    DropTables,
    RepositionSlots,
    SwapIn,
    SwapOut,
    WriteEntries,
)
from quire.core.ids import BlockId, HostBlockId, SequenceId, TableId


class SwapList:
    """The transfers of one direction that begin with the message."""

    __slots__ = ("blocks", "host_blocks", "transfers")

    def __init__(self) -> None:
        self.transfers: list[int] = []
        self.blocks: list[int] = []
        self.host_blocks: list[int] = []

    def __len__(self) -> int:
        return len(self.transfers)

    def add(self, transfer: int, block: BlockId, host_block: HostBlockId) -> None:
        self.transfers.append(transfer)
        self.blocks.append(block)
        self.host_blocks.append(host_block)


class OperationList:
    """Collects operations; ``take`` returns them and starts again."""

    def __init__(self) -> None:
        self._operations: list[BatchOperation] = []
        self._out = SwapList()
        self._in = SwapList()
        self._kind: type | None = None
        self._left: list[int] = []
        self._right: list[int] = []
        self._copied_to: set[int] = set()
        self._words: list[int] = []
        self._blocks: list[int] = []

    @property
    def has_swaps(self) -> bool:
        return bool(self._out or self._in)

    def add(self, operation: BatchOperation) -> None:
        self._flush()
        self._operations.append(operation)

    def swap_out(self, transfer: int, block: BlockId, host_block: HostBlockId) -> None:
        self._out.add(transfer, block, host_block)

    def swap_in(self, transfer: int, host_block: HostBlockId, block: BlockId) -> None:
        self._in.add(transfer, block, host_block)

    def copy_slots(self, source: int, target: int, num_slots: int) -> None:
        """Copy ``num_slots`` consecutive flat slots, from ``source`` on, to those from ``target``
        on."""
        # Within one operation the engine may read all sources before it writes any target. A copy
        # that reads or writes a slot that an earlier copy wrote is therefore put into an operation
        # of its own.
        sources, targets = range(source, source + num_slots), range(target, target + num_slots)
        written = self._copied_to
        if not (written.isdisjoint(sources) and written.isdisjoint(targets)):
            self._flush()
        for offset in range(num_slots):
            self._pair(CopySlots, source + offset, target + offset)
        self._copied_to.update(targets)

    def reposition_slots(self, slot: int, positions: Sequence[int]) -> None:
        """Move the consecutive flat slots from ``slot`` on to ``positions``."""
        # Each slot occurs once: a page that is moved again in this message is copied first.
        for offset, position in enumerate(positions):
            self._pair(RepositionSlots, slot + offset, position)

    def write_entry(self, table: TableId, entry: int, block: BlockId, word: int) -> None:
        """Set an entry of a table and its visibility word; later entries are cut off."""
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
        if self._out:
            swaps, self._out = self._out, SwapList()
            taken.append(
                SwapOut(
                    transfers=_i32(swaps.transfers),
                    blocks=_i32(swaps.blocks),
                    host_blocks=_i32(swaps.host_blocks),
                )
            )
        if self._in:
            swaps, self._in = self._in, SwapList()
            taken.append(
                SwapIn(
                    transfers=_i32(swaps.transfers),
                    host_blocks=_i32(swaps.host_blocks),
                    blocks=_i32(swaps.blocks),
                )
            )
        return taken

    def _pair(self, kind: type, left: int, right: int) -> None:
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._left.append(left)
        self._right.append(right)

    def _flush(self) -> None:
        kind, self._kind = self._kind, None
        left, self._left = self._left, []
        right, self._right = self._right, []
        if kind is CloseSequences:
            self._operations.append(CloseSequences(sequences=[SequenceId(i) for i in left]))
        elif kind is DropTables:
            self._operations.append(DropTables(tables=[TableId(i) for i in left]))
        elif kind is WriteEntries:
            self._operations.append(
                WriteEntries(
                    tables=_i32(left),
                    entries=_i32(right),
                    blocks=_i32(self._blocks),
                    visible=np.array(self._words, np.uint64),
                )
            )
            self._blocks, self._words = [], []
        elif kind is CopySlots:
            self._operations.append(CopySlots(source=_i32(left), target=_i32(right)))
            self._copied_to = set()
        elif kind is RepositionSlots:
            self._operations.append(RepositionSlots(slots=_i32(left), positions=_i32(right)))


def _i32(values: Sequence[int]) -> I32:
    return np.array(values, np.int32)
