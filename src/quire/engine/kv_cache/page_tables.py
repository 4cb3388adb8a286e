"""Resident page tables: which blocks a holder sees, and which of their slots.

Control changes them by operations; a sequence that appends sets the bits of its new slots here.
Kept as growing numpy arrays, so that a step gathers many tables without a loop over pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32, U64
from quire.core.errors import InvalidArgument, UnknownHandle


class PageTable:
    """One table: ``blocks[:num_pages]`` and their 64-bit ``visible`` words."""

    __slots__ = ("_blocks", "_visible", "num_pages")

    def __init__(self) -> None:
        self._blocks = np.empty(8, np.int32)
        self._visible = np.empty(8, np.uint64)
        self.num_pages = 0

    @property
    def blocks(self) -> I32:
        return self._blocks[: self.num_pages]

    @property
    def visible(self) -> U64:
        return self._visible[: self.num_pages]

    def write(self, start: int, blocks: I32, visible: U64) -> None:
        """Entries from ``start`` on become these; ``start`` is at most ``num_pages``."""
        end = start + len(blocks)
        if end > len(self._blocks):
            self._grow(end)
        self._blocks[start:end] = blocks
        self._visible[start:end] = visible
        self.num_pages = end

    def reveal(self, start: int, end: int, page_size: int) -> None:
        """Set the bits of the slots ``start`` to ``end - 1`` (entry * page_size + offset)."""
        while start < end:
            entry, offset = divmod(start, page_size)
            count = min(page_size - offset, end - start)
            self._visible[entry] |= np.uint64(((1 << count) - 1) << offset)
            start += count

    def _grow(self, num_pages: int) -> None:
        capacity = max(num_pages, 2 * len(self._blocks))
        for name in ("_blocks", "_visible"):
            old = getattr(self, name)
            new = np.empty(capacity, old.dtype)
            new[: self.num_pages] = old[: self.num_pages]
            setattr(self, name, new)


@dataclass(frozen=True, slots=True)
class PageLists:
    """Pages of several holders in CSR form: row r owns ``starts[r]:starts[r + 1]``."""

    starts: NDArray[np.int64]
    blocks: I32
    visible: U64


class PageTables:
    """All tables of one layer group, by id."""

    def __init__(self) -> None:
        self._tables: dict[int, PageTable] = {}

    def __contains__(self, table: int) -> bool:
        return table in self._tables

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, table: int) -> PageTable:
        """The table of that id, else ``UnknownHandle``."""
        try:
            return self._tables[table]
        except KeyError:
            raise UnknownHandle(
                f"page table {table} is not resident: write it before a row names it", table=table
            ) from None

    def write(self, table: int, start: int, blocks: I32, visible: U64) -> None:
        """As ``PageTable.write``; creates the table when ``start`` is 0."""
        entry = self._tables.get(table)
        num_pages = entry.num_pages if entry is not None else 0
        if not 0 <= start <= num_pages:
            raise InvalidArgument(
                f"page table {table} has {num_pages} entries, but is written from entry {start}: "
                "entries may not leave a gap"
            )
        if entry is None:
            entry = self._tables[table] = PageTable()
        entry.write(start, blocks, visible)

    def drop(self, table: int) -> None:
        self.get(table)
        del self._tables[table]

    def page_lists(self, tables: Sequence[int]) -> PageLists:
        """The pages of each of ``tables``; a negative id stands for no pages."""
        held = [self._tables[table] for table in tables if table >= 0]
        counts = [self._tables[table].num_pages if table >= 0 else 0 for table in tables]
        starts = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        if not held:
            return PageLists(starts, np.empty(0, np.int32), np.empty(0, np.uint64))
        return PageLists(
            starts,
            np.concatenate([table.blocks for table in held]),
            np.concatenate([table.visible for table in held]),
        )
