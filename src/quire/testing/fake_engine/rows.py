"""One pass of the fake model over ragged rows, under the visibility rules of ``core.batch``.

Owns writing slots and computing hidden states; does not know why a row is run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import F32, I32, U64, no_i32
from quire.testing.fake_engine import hashing
from quire.testing.fake_engine.memory import FakeMemory, Table
from quire.testing.fake_engine.violations import require

Bools = NDArray[np.bool_]


@dataclass(slots=True)
class FakeRow:
    """New tokens that run together. Legend: T new tokens, C columns of the table.

    ``contents`` [T] embedded values · ``tokens`` [T] ids, -1 where the content is no token ·
    ``positions`` [T] · ``slots`` [T], -1: not kept · ``mask`` [T, C + T] or None. ``name`` appears
    in errors. ``adapter``: index of the adapter to run with, -1 for none.
    """

    name: str
    contents: U64
    tokens: I32
    positions: I32
    slots: I32
    table: Table | None
    mask: Bools | None = None
    adapter: int = -1


@dataclass(slots=True)
class RowResult:
    """``hidden`` [T]; ``sees`` [T, K + T] over K context slots and the new tokens.

    ``columns`` [K + T]: their indices among all slots of the table and the new tokens.
    """

    hidden: U64
    sees: Bools
    column_positions: I32
    column_tokens: I32
    columns: I32
    num_columns: int

    def attention_mass(self) -> F32:
        """Mass ``[layers, num_columns]``: everything that a token sees gets an equal share, in
        every layer."""
        shares = self.sees / np.maximum(self.sees.sum(axis=1, keepdims=True), 1)
        mass = np.zeros((hashing.NUM_LAYERS, self.num_columns), np.float32)
        mass[:, self.columns] = shares.sum(axis=0)
        return mass

    def seen_tokens(self, index: int) -> tuple[int, ...]:
        """The tokens that new token ``index`` saw, itself included, ordered by position."""
        columns = np.nonzero(self.sees[index])[0]
        order = np.argsort(self.column_positions[columns], kind="stable")
        return tuple(self.column_tokens[columns[order]].tolist())


def run_rows(memory: FakeMemory, rows: list[FakeRow]) -> list[RowResult]:
    """Run the rows as one batch: K and V of all are written, then each attends, layer by layer."""
    writer = _writers(memory, rows)
    values = [hashing.first_layer(row.contents, row.positions, row.adapter) for row in rows]
    for row, value in zip(rows, values, strict=True):
        kept = row.slots >= 0
        memory.slots.positions[row.slots[kept]] = row.positions[kept]
        memory.slots.tokens[row.slots[kept]] = row.tokens[kept]
        memory.slots.values[0, row.slots[kept]] = value[kept]
    views = [_view(memory, index, row, writer) for index, row in enumerate(rows)]
    for layer in range(hashing.NUM_LAYERS):
        values = [
            hashing.next_layer(layer, value, _visible_sums(memory, layer, view, value))
            for value, view in zip(values, views, strict=True)
        ]
        if layer + 1 < hashing.NUM_LAYERS:
            for row, value in zip(rows, values, strict=True):
                kept = row.slots >= 0
                memory.slots.values[layer + 1, row.slots[kept]] = value[kept]
    return [
        RowResult(
            value,
            view.sees,
            np.concatenate([memory.slots.positions[view.context], row.positions]),
            np.concatenate([memory.slots.tokens[view.context], row.tokens]),
            view.columns,
            view.num_columns,
        )
        for row, value, view in zip(rows, values, views, strict=True)
    ]


def _writers(memory: FakeMemory, rows: list[FakeRow]) -> dict[int, int]:
    """Map each slot to the row that writes it; a slot has one writer per pass."""
    writer: dict[int, int] = {}
    for index, row in enumerate(rows):
        kept = row.slots[row.slots >= 0]
        memory.check_slots(kept, row.name)
        memory.check_unsent(kept, row.name)
        for slot in kept.tolist():
            require(
                slot not in writer,
                f"{row.name} writes slot {slot}, which {rows[writer.get(slot, 0)].name} of the "
                "same message writes too",
            )
            writer[slot] = index
    return writer


@dataclass(slots=True)
class _View:
    """The ``context`` slots [K] that a row may see, and which of them and of its new tokens each
    token ``sees`` [T, K + T]. ``columns`` [K + T]: indices among all slots of the table and the new
    tokens."""

    context: I32
    sees: Bools
    columns: I32
    num_columns: int


def _view(memory: FakeMemory, index: int, row: FakeRow, writer: dict[int, int]) -> _View:
    num_new = len(row.positions)
    own = set(row.slots.tolist())
    context, columns, num_slots = no_i32(), no_i32(), 0
    shown = np.zeros((num_new, 0), bool)
    if row.table is not None:
        context, shown = _context(memory, row, row.table)
        flags = row.table.visible_flags(memory.page_size)
        columns, num_slots = np.flatnonzero(flags).astype(np.int32), len(flags)
        other = np.array([slot not in own for slot in context.tolist()], bool)
        context, columns, shown = context[other], columns[other], shown[:, other]
    memory.check_written(context, f"{row.name} sees")
    late = [slot for slot in context.tolist() if writer.get(slot, -1) > index]
    require(not late, f"{row.name} sees slots {late} that a later row of the message writes")
    if row.mask is not None:
        new = row.mask[:, row.mask.shape[1] - num_new :]
    else:
        shown = memory.slots.positions[context][None, :] < row.positions[:, None]
        new = row.positions[None, :] < row.positions[:, None]
        new |= np.eye(num_new, dtype=bool)
    own_columns = num_slots + np.arange(num_new, dtype=np.int32)
    return _View(
        context,
        np.concatenate([shown, new], axis=1),
        np.concatenate([columns, own_columns]),
        num_slots + num_new,
    )


def _context(memory: FakeMemory, row: FakeRow, table: Table) -> tuple[I32, Bools]:
    """Visible slots of the table and the row's explicit mask over them (ones without a mask)."""
    if row.mask is None:
        context = table.visible_slots(memory.page_size)
        return context, np.ones((len(row.positions), len(context)), bool)
    slots = table.all_slots(memory.page_size)
    flags = table.visible_flags(memory.page_size)
    require(
        row.mask.shape[1] == len(slots) + len(row.positions),
        f"{row.name}: its mask has {row.mask.shape[1]} columns; its table has {len(slots)} slots "
        f"and it has {len(row.positions)} new tokens",
    )
    return slots[flags], row.mask[:, : len(slots)][:, flags]


def _visible_sums(memory: FakeMemory, layer: int, view: _View, own: U64) -> U64:
    contents = np.concatenate([memory.slots.values[layer, view.context], own])
    terms = hashing.visible_terms(layer, contents)
    seen = np.where(view.sees, terms[None, :], np.uint64(0))
    return np.asarray(seen.sum(axis=1, dtype=np.uint64))
