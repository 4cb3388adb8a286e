"""Page tables that are resident in an engine, and the updates that keep them current.

Owns a mirror of every table and the queue that it serves. Knows blocks and visibility words only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import compress, count
from operator import ne
from struct import pack

import numpy as np

from quire.control.memory.operations import OperationList
from quire.control.memory.packed_tokens import int_array
from quire.core.batch import WriteTable
from quire.core.ids import BlockId, TableId

MAX_TABLES_PER_QUEUE = 4


class ResidentTable:
    """The mirror of one table, as lists: one or two entries change from step to step, for which an
    array would cost more than the comparison.

    ``is_leased``  a running sequence appends to it: the engine sets bits that the mirror does not
                   have.
    ``is_longer``  the engine's table may have entries after the mirror's last; a write cuts them
                   off.
    ``message``    the last message with a row that names it.
    """

    __slots__ = ("blocks", "id", "is_leased", "is_longer", "message", "queue", "visible")

    def __init__(self, table: TableId, queue: Hashable) -> None:
        self.id = table
        self.queue = queue
        self.blocks: list[BlockId] = []
        self.visible: list[int] = []
        self.is_leased = False
        self.is_longer = True
        self.message = -1

    def may_change(self, message: int) -> bool:
        """Whether no sequence leases it and no row of ``message`` names it."""
        return not self.is_leased and self.message != message

    def is_prefix_of(self, blocks: Sequence[BlockId]) -> bool:
        return bool(self.blocks) and self.blocks == blocks[: len(self.blocks)]

    def num_common(self, blocks: Sequence[BlockId], visible: Sequence[int]) -> int:
        """The number of leading entries that are already equal to the wanted ones."""
        return min(_num_common(self.blocks, blocks), _num_common(self.visible, visible))

    def write(
        self,
        start: int,
        blocks: Sequence[BlockId],
        visible: Sequence[int],
        operations: OperationList,
    ) -> None:
        """Replace the entries from ``start`` on."""
        self.blocks[start:] = blocks
        self.visible[start:] = visible
        self.is_longer = False
        if len(blocks) == 1:  # as in most steps of a loop
            operations.write_entry(self.id, start, blocks[0], visible[0])
            return
        operations.add(
            WriteTable(
                table=self.id,
                start=start,
                blocks=int_array(blocks),
                visible=np.frombuffer(bytearray(pack(f"{len(visible)}Q", *visible)), np.uint64),
            )
        )


def _num_common(present: Sequence[int], wanted: Sequence[int]) -> int:
    """The number of leading items that are equal. Usually only the last item differs from step to
    step, and comparing two list slices is faster than comparing items one by one."""
    num_both = min(len(present), len(wanted))
    last = num_both - 1
    if num_both and present[:last] == wanted[:last]:
        return num_both if present[last] == wanted[last] else last
    return next(compress(count(), map(ne, present, wanted)), num_both)


class TableCache:
    """The tables of one engine: a few for each queue, least recently used first."""

    def __init__(self) -> None:
        self._num_ids = 0
        self._free_ids: list[TableId] = []
        self._by_queue: dict[Hashable, OrderedDict[TableId, ResidentTable]] = {}

    def __len__(self) -> int:
        return sum(len(tables) for tables in self._by_queue.values())

    def place(
        self,
        queue: Hashable,
        blocks: Sequence[BlockId],
        visible: Sequence[int],
        message: int,
        operations: OperationList,
    ) -> ResidentTable:
        """Return a table of ``queue`` that holds exactly these entries when ``message`` runs.

        All operations of a message run before its rows, so a table that another row of the same
        message names is reused only if none of its entries has to change.
        """
        tables = self._by_queue.get(queue)
        if tables is None:
            tables = self._by_queue[queue] = OrderedDict()
        table, num_common = self._nearest(tables, blocks, visible, message)
        if table is None:
            table, num_common = self._create(queue, tables), 0
        if num_common < len(blocks) or len(table.blocks) > len(blocks) or table.is_longer:
            table.write(num_common, blocks[num_common:], visible[num_common:], operations)
        table.message = message
        tables.move_to_end(table.id)
        return table

    def _nearest(
        self,
        tables: OrderedDict[TableId, ResidentTable],
        blocks: Sequence[BlockId],
        visible: Sequence[int],
        message: int,
    ) -> tuple[ResidentTable | None, int]:
        """The table that needs the fewest new entries, and the number of entries that need no
        change; None if a new table is as cheap. A loop usually continues with the blocks of the
        table that was used last, which is therefore tried first."""
        last = next(reversed(tables.values()), None)
        if last is not None and last.may_change(message) and last.is_prefix_of(blocks):
            return last, _num_common(last.visible, visible)
        best: ResidentTable | None = None
        best_common = -1
        for table in tables.values():
            if table.is_leased:
                continue
            num_common = table.num_common(blocks, visible)
            is_equal = num_common == len(blocks) == len(table.blocks) and not table.is_longer
            if (table.may_change(message) or is_equal) and num_common > best_common:
                best, best_common = table, num_common
        if best_common <= 0 and len(tables) < MAX_TABLES_PER_QUEUE:
            return None, 0
        return best, best_common

    def _create(
        self, queue: Hashable, tables: OrderedDict[TableId, ResidentTable]
    ) -> ResidentTable:
        if not self._free_ids:
            self._free_ids.append(TableId(self._num_ids))
            self._num_ids += 1
        table = ResidentTable(self._free_ids.pop(), queue)
        tables[table.id] = table
        return table

    def lease(self, table: ResidentTable) -> None:
        """Give the table to a sequence: until ``give_back`` only this sequence changes it."""
        table.is_leased = True

    def give_back(self, table: ResidentTable, num_known: int, operations: OperationList) -> None:
        """Take the table back from its closed sequence. The engine may have changed the entries
        from ``num_known`` on."""
        table.is_leased = False
        table.is_longer = True
        table.blocks = table.blocks[:num_known]
        table.visible = table.visible[:num_known]
        if table.queue not in self._by_queue:
            self._drop(table, operations)

    def drop_queue(self, queue: Hashable, operations: OperationList) -> None:
        """Drop the tables of a closed queue. A leased one is dropped when its sequence gives it
        back."""
        for table in self._by_queue.pop(queue, {}).values():
            if not table.is_leased:
                self._drop(table, operations)

    def trim(self, queue: Hashable, operations: OperationList) -> None:
        """Drop the queue's least recently used tables beyond ``MAX_TABLES_PER_QUEUE``."""
        tables = self._by_queue.get(queue)
        if tables is None or len(tables) <= MAX_TABLES_PER_QUEUE:
            return
        unused = [table for table in tables.values() if not table.is_leased]
        for table in unused[: len(tables) - MAX_TABLES_PER_QUEUE]:
            del tables[table.id]
            self._drop(table, operations)

    def _drop(self, table: ResidentTable, operations: OperationList) -> None:
        operations.drop_table(table.id)
        self._free_ids.append(table.id)
