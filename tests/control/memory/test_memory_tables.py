"""Page tables on the engine: what must be written so that a row finds its blocks."""

from __future__ import annotations

from quire.control.memory.operations import OperationList
from quire.control.memory.tables import TableCache
from quire.core.batch import WriteEntries, WriteTable
from quire.core.ids import BlockId

QUEUE = "queue"
BLOCKS = [BlockId(4), BlockId(7)]
VISIBLE = [0b1111, 0b0011]


def writes(operations: OperationList) -> list[tuple[int, list[int]]]:
    """Where each begins, and the blocks from there on."""
    found: list[tuple[int, list[int]]] = []
    for operation in operations.take():
        if isinstance(operation, WriteTable):
            found.append((operation.start, operation.blocks.tolist()))
        elif isinstance(operation, WriteEntries):
            pairs = zip(operation.entries.tolist(), operation.blocks.tolist(), strict=True)
            found += [(entry, [block]) for entry, block in pairs]
    return found


def test_only_what_differs_is_written() -> None:
    tables, operations = TableCache(), OperationList()
    table = tables.place(QUEUE, BLOCKS, VISIBLE, 0, operations)
    assert writes(operations) == [(0, [4, 7])]
    assert tables.place(QUEUE, BLOCKS, VISIBLE, 1, operations) is table
    assert writes(operations) == []
    longer = [*BLOCKS, BlockId(9)]
    assert tables.place(QUEUE, longer, [*VISIBLE, 1], 2, operations) is table
    assert writes(operations) == [(2, [9])]


def test_what_a_sequence_appended_is_cut_off_for_the_next_row() -> None:
    """The engine has set entries behind those of the mirror while the sequence had the table."""
    tables, operations = TableCache(), OperationList()
    table = tables.place(QUEUE, BLOCKS, VISIBLE, 0, operations)
    tables.lease(table)
    tables.give_back(table, 2, operations)
    operations.take()
    assert tables.place(QUEUE, BLOCKS, VISIBLE, 1, operations) is table
    assert writes(operations) == [(2, [])]
