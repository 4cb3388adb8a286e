"""Resident page tables: which blocks a holder sees, and which of their slots.

Control changes them by operations; a sequence that appends sets the bits of its new slots here. All
tables are rows of flat arrays, so that a step gathers any number of them without a loop, and a
kernel reads them in place. A table id is resolved to its row once.

Shapes: T rows of the arrays, P entries of the longest table, R rows of a step, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32, U64
from quire.core.errors import InvalidArgument, UnknownHandle

I64 = NDArray[np.int64]

NO_TABLE = -1
"""Used instead of a row: a table without entries."""

UNKNOWN_TABLE = -2
"""Used instead of a row: no table with that id is resident."""

_FIRST_ROWS = 16
_FIRST_ENTRIES = 8


@dataclass(frozen=True, slots=True)
class PageLists:
    """Pages of several holders in CSR form: row r owns ``starts[r]:starts[r + 1]``."""

    starts: I64
    blocks: I32
    visible: U64


class PageTables:
    """All tables of one layer group, by id.

    ``blocks_TP`` and their 64-bit words ``visible_TP`` are valid up to ``num_pages_T``. The arrays
    may be replaced by larger ones whenever a table is written.
    """

    def __init__(self) -> None:
        self.blocks_TP = np.zeros((_FIRST_ROWS, _FIRST_ENTRIES), np.int32)
        self.visible_TP = np.zeros((_FIRST_ROWS, _FIRST_ENTRIES), np.uint64)
        self.num_pages_T = np.zeros(_FIRST_ROWS, np.int64)
        self._rows: dict[int, int] = {}
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))

    def __contains__(self, table: int) -> bool:
        return table in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, table: int) -> int:
        """The row of the table with that id, valid until it is dropped. Raises
        ``UnknownHandle``."""
        try:
            return self._rows[table]
        except KeyError:
            raise UnknownHandle(
                f"page table {table} is not resident: write it before a row names it", table=table
            ) from None

    def find_rows(self, tables: NDArray[np.integer]) -> I64:
        """Rows of several tables; ``NO_TABLE`` for negative ids, ``UNKNOWN_TABLE`` if not
        resident."""
        rows = self._rows
        found = [
            NO_TABLE if table < 0 else rows.get(table, UNKNOWN_TABLE) for table in tables.tolist()
        ]
        return np.array(found, np.int64)

    def write(self, table: int, start: int, blocks: I32, visible: U64) -> None:
        """Replace the entries from ``start`` on; creates the table when ``start`` is 0."""
        row = self._rows.get(table)
        num_pages = int(self.num_pages_T[row]) if row is not None else 0
        if not 0 <= start <= num_pages:
            raise InvalidArgument(
                f"page table {table} has {num_pages} entries, but is written from entry {start}: "
                "entries may not leave a gap"
            )
        if row is None:
            row = self._rows[table] = self._take_row()
        end = start + len(blocks)
        if end > self.blocks_TP.shape[1]:
            self._resize(len(self.num_pages_T), max(end, 2 * self.blocks_TP.shape[1]))
        self.blocks_TP[row, start:end] = blocks
        self.visible_TP[row, start:end] = visible
        self.num_pages_T[row] = end

    def write_entries(self, tables: I32, entries: I32, blocks: I32, visible: U64) -> None:
        """Write one entry of each of ``tables``, in order, as ``write`` does."""
        rows = self.find_rows(tables)
        fits = (rows >= 0) & (entries >= 0) & (entries <= self.num_pages_T[rows])
        fits &= entries < self.blocks_TP.shape[1]
        if fits.all() and len(set(rows.tolist())) == len(rows):
            self.blocks_TP[rows, entries] = blocks
            self.visible_TP[rows, entries] = visible
            self.num_pages_T[rows] = entries + 1
            return
        for i, table in enumerate(tables.tolist()):
            self.write(table, int(entries[i]), blocks[i : i + 1], visible[i : i + 1])

    def drop(self, table: int) -> None:
        row = self.row(table)
        del self._rows[table]
        self.num_pages_T[row] = 0
        self._free.append(row)

    def blocks(self, row: int) -> I32:
        return self.blocks_TP[row, : self.num_pages_T[row]]

    def visible(self, row: int) -> U64:
        return self.visible_TP[row, : self.num_pages_T[row]]

    def slots(self, rows_S: I64, table_slots_S: I64, page_size: int) -> I64:
        """The flat slots of table slots (entry * page_size + offset)."""
        entry_S, offset_S = table_slots_S // page_size, table_slots_S % page_size
        slots: I64 = self.blocks_TP[rows_S, entry_S].astype(np.int64) * page_size + offset_S
        return slots

    def reveal(self, rows_S: I64, table_slots_S: I64, page_size: int) -> None:
        """Set the bits of table slots."""
        entry_S, offset_S = table_slots_S // page_size, table_slots_S % page_size
        bits_S = np.uint64(1) << offset_S.astype(np.uint64)
        np.bitwise_or.at(self.visible_TP, (rows_S, entry_S), bits_S)

    def page_lists(self, rows_R: I64) -> PageLists:
        """The pages of the tables in these rows; ``NO_TABLE`` means no pages."""
        counts_R = np.where(rows_R >= 0, self.num_pages_T[rows_R], 0)
        starts = np.zeros(len(rows_R) + 1, np.int64)
        np.cumsum(counts_R, out=starts[1:])
        row_P = np.repeat(rows_R, counts_R)
        entry_P = np.arange(starts[-1]) - np.repeat(starts[:-1], counts_R)
        return PageLists(starts, self.blocks_TP[row_P, entry_P], self.visible_TP[row_P, entry_P])

    def _take_row(self) -> int:
        if not self._free:
            count = len(self.num_pages_T)
            self._resize(2 * count, self.blocks_TP.shape[1])
            self._free = list(range(2 * count - 1, count - 1, -1))
        row = self._free.pop()
        self.num_pages_T[row] = 0
        return row

    def _resize(self, num_rows: int, num_entries: int) -> None:
        old_rows, old_entries = self.blocks_TP.shape
        for name in ("blocks_TP", "visible_TP"):
            old = getattr(self, name)
            new = np.zeros((num_rows, num_entries), old.dtype)
            new[:old_rows, :old_entries] = old
            setattr(self, name, new)
        self.num_pages_T = np.concatenate(
            (self.num_pages_T, np.zeros(num_rows - old_rows, np.int64))
        )


class TablePages:
    """The pages of a step's rows as rows of ``tables``; converted to ``PageLists`` on demand.

    The conversion copies the tables as they are at the first access.
    """

    def __init__(self, tables: PageTables, rows_R: I64) -> None:
        self.tables = tables
        self.rows_R = rows_R
        self._lists: PageLists | None = None

    @property
    def lists(self) -> PageLists:
        if self._lists is None:
            self._lists = self.tables.page_lists(self.rows_R)
        return self._lists

    @property
    def starts(self) -> I64:
        return self.lists.starts

    @property
    def blocks(self) -> I32:
        return self.lists.blocks

    @property
    def visible(self) -> U64:
        return self.lists.visible
