"""Expands page lists into the slots that each row can see. Pure numpy, vectorised over rows.

Shapes: R rows, P pages, C visible slots of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.engine.attention.backend import AttentionRows

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class VisibleSlots:
    """Slots of all rows in CSR form; row r owns ``starts[r]:starts[r + 1]``.

    ``columns`` count a row's table slots in entry order (the columns of an explicit mask).
    """

    starts: I64
    rows: I64
    slots: I64
    columns: I64
    positions: I64

    @property
    def counts(self) -> I64:
        return np.diff(self.starts)

    @property
    def offsets(self) -> I64:
        """Index of each slot within its row."""
        return np.arange(len(self.slots)) - self.starts[self.rows]


def visible_slots(rows: AttentionRows, horizon: int = 0) -> VisibleSlots:
    """The visible slots of every row's pages, without those that the row itself writes.

    Slots at positions that no token of the row can see, now or in the next ``horizon`` positions,
    are left out, except in rows with an explicit mask.
    """
    num_rows, page_size = rows.num_rows, rows.page_size
    page_counts = np.diff(rows.pages.starts)
    bit_of_slot = np.arange(page_size, dtype=np.uint64)
    bits = (rows.pages.visible[:, None] >> bit_of_slot) & np.uint64(1)
    pages, offsets = np.nonzero(bits)
    row_of_page = np.repeat(np.arange(num_rows), page_counts)
    row_of_slot = row_of_page[pages]
    slots = rows.pages.blocks[pages].astype(np.int64) * page_size + offsets
    positions = rows.slot_positions[slots].astype(np.int64)
    wanted = ~_written_by_own_row(rows, slots, row_of_slot)
    wanted &= positions <= _last_visible(rows, horizon)[row_of_slot]
    pages, offsets, row_of_slot = pages[wanted], offsets[wanted], row_of_slot[wanted]
    starts = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row_of_slot, minlength=num_rows), out=starts[1:])
    columns = (pages - rows.pages.starts[row_of_slot]) * page_size + offsets
    return VisibleSlots(starts, row_of_slot, slots[wanted], columns, positions[wanted])


def _last_visible(rows: AttentionRows, horizon: int) -> I64:
    """Per row, the highest position that one of its tokens may see."""
    if not len(rows.positions):
        return np.zeros(rows.num_rows, np.int64)
    highest = np.maximum.reduceat(rows.positions, rows.row_starts[:-1]).astype(np.int64)
    last = highest - 1 + horizon
    for row in rows.masks:
        last[row] = np.iinfo(np.int64).max
    return last


def _written_by_own_row(rows: AttentionRows, slots: I64, row_of_slot: I64) -> NDArray[np.bool_]:
    row_of_token = np.repeat(np.arange(rows.num_rows), np.diff(rows.row_starts))
    writer = np.full(len(rows.slot_positions), -1, np.int32)
    writer[rows.slots] = row_of_token
    written: NDArray[np.bool_] = writer[slots] == row_of_slot
    return written
