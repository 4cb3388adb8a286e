"""The memory operations of the message being built.

Owns merging adjacent operations of one kind into one array operation; the order never changes.
Transfers are gathered into one operation for each direction: a message only begins them, and their
blocks are not used before they have ended, so their order among the other operations does not
matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.core.batch import (
    I32,
    BatchOperation,
    CloseReceives,
    CloseSequences,
    CopySlots,
    DropTables,
    ReadDisk,
    RepositionSlots,
    SwapIn,
    SwapOut,
    WriteDisk,
    WriteEntries,
)
from quire.core.ids import BlockId, DiskBlockId, HostBlockId, SequenceId, TableId


class TransferList:
    """The transfers of one direction that begin with the message; ``lower`` are blocks of the lower
    of the two tiers."""

    __slots__ = ("blocks", "lower", "transfers")

    def __init__(self) -> None:
        self.transfers: list[int] = []
        self.blocks: list[int] = []
        self.lower: list[int] = []

    def add(self, transfer: int, block: int, lower: int) -> None:
        self.transfers.append(transfer)
        self.blocks.append(block)
        self.lower.append(lower)

    def take(self) -> tuple[I32, I32, I32]:
        """Return what was added, as arrays, and begin anew."""
        taken = _i32(self.transfers), _i32(self.blocks), _i32(self.lower)
        self.transfers, self.blocks, self.lower = [], [], []
        return taken


class OperationList:
    """Collects operations; ``take`` returns them and starts again."""

    def __init__(self) -> None:
        self._operations: list[BatchOperation] = []
        self._out = TransferList()
        self._in = TransferList()
        self._stored = TransferList()
        self._spilled = TransferList()
        self._read = TransferList()
        self._has_transfers = False
        self._kind: type | None = None
        self._left: list[int] = []
        self._right: list[int] = []
        self._copied_to: set[int] = set()
        self._words: list[int] = []
        self._blocks: list[int] = []
        self._has_fence = False

    @property
    def cannot_wait(self) -> bool:
        """Whether it has operations that are sent even in a message without rows: transfers, and
        fences."""
        return self._has_transfers or self._has_fence

    def add(self, operation: BatchOperation) -> None:
        self._flush()
        self._operations.append(operation)

    def swap_out(self, transfer: int, block: BlockId, host_block: HostBlockId) -> None:
        self._out.add(transfer, block, host_block)
        self._has_transfers = True

    def swap_in(self, transfer: int, host_block: HostBlockId, block: BlockId) -> None:
        self._in.add(transfer, block, host_block)
        self._has_transfers = True

    def store(self, transfer: int, block: BlockId, disk_block: DiskBlockId) -> None:
        """Begin a transfer from the device to the disk."""
        self._stored.add(transfer, block, disk_block)
        self._has_transfers = True

    def spill(self, transfer: int, host_block: HostBlockId, disk_block: DiskBlockId) -> None:
        """Begin a transfer from the host to the disk."""
        self._spilled.add(transfer, host_block, disk_block)
        self._has_transfers = True

    def read(self, transfer: int, disk_block: DiskBlockId, block: BlockId) -> None:
        """Begin a transfer from the disk to the device."""
        self._read.add(transfer, block, disk_block)
        self._has_transfers = True

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

    def close_receive(self, lease: int) -> None:
        self._pair(CloseReceives, lease, 0)
        self._has_fence = True

    def drop_table(self, table: TableId) -> None:
        self._pair(DropTables, table, 0)

    def take(self) -> list[BatchOperation]:
        self._flush()
        taken, self._operations = self._operations, []
        self._has_fence = False
        if self._has_transfers:
            taken += self._take_transfers()
        return taken

    def _take_transfers(self) -> list[BatchOperation]:
        self._has_transfers = False
        taken: list[BatchOperation] = []
        if self._out.transfers:
            ids, blocks, lower = self._out.take()
            taken.append(SwapOut(transfers=ids, blocks=blocks, host_blocks=lower))
        if self._in.transfers:
            ids, blocks, lower = self._in.take()
            taken.append(SwapIn(transfers=ids, host_blocks=lower, blocks=blocks))
        if self._stored.transfers:
            ids, blocks, lower = self._stored.take()
            taken.append(WriteDisk(transfers=ids, tier="device", blocks=blocks, disk_blocks=lower))
        if self._spilled.transfers:
            ids, blocks, lower = self._spilled.take()
            taken.append(WriteDisk(transfers=ids, tier="host", blocks=blocks, disk_blocks=lower))
        if self._read.transfers:
            ids, blocks, lower = self._read.take()
            taken.append(ReadDisk(transfers=ids, disk_blocks=lower, blocks=blocks))
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
        elif kind is CloseReceives:
            self._operations.append(CloseReceives(leases=left))
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
    return np.fromiter(values, np.int32, len(values))  # np.array would search for nested lists
