"""The work of one attention launch: which tokens attend to which columns of their row's entries.

Pure numpy; the fields are those of ``cuda.kernels.attention``. Long rows of few tokens are split
along their columns so that one sequence can occupy the device; the parts are merged afterwards.

Shapes: R rows, E entries, I tiles (some tokens of one row), W work items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionRows
from quire.engine.cuda.page_entries import PageEntries

I64 = NDArray[np.int64]

_FAR = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class Tiling:
    """How work is cut. ``tile_tokens``: tokens of a row that one program takes together.

    ``column_block``: columns read at a time; every range begins at a multiple of it.
    ``split_columns``: longest range of one program, a multiple of ``column_block``; None: rows are
    never split, so a token's result does not depend on the rest of the batch.
    """

    tile_tokens: int
    column_block: int
    split_columns: int | None


@dataclass(frozen=True, slots=True)
class WorkList:
    """``items`` int32 ``[W, 8]``, ``merges`` int32 ``[M, 4]``, ``num_partials`` of the items."""

    items: I32
    merges: I32
    num_partials: int


@dataclass(frozen=True, slots=True)
class EntryPositions:
    """Lowest and highest position among each entry's set slots ``[E]``."""

    lowest: I32
    highest: I32


def entry_positions(rows: AttentionRows, entries: PageEntries, members: I64) -> EntryPositions:
    """Compute the positions of entries from those of all slots, including those of the new tokens.
    Entries of rows that are not ``members`` get positions with which they are never left out."""
    lowest = np.full(len(entries.blocks), -1, np.int32)
    highest = np.full(len(entries.blocks), _FAR, np.int32)
    is_member = np.zeros(entries.num_rows, np.bool_)
    is_member[members] = True
    chosen = np.flatnonzero(np.repeat(is_member, entries.counts))
    offsets = np.arange(rows.page_size)
    slots_EP = entries.blocks[chosen].astype(np.int64)[:, None] * rows.page_size + offsets
    is_set_EP = (entries.words[chosen, None] >> offsets.astype(np.uint64)) & np.uint64(1) != 0
    last = len(rows.slot_positions) - 1
    positions_EP = rows.slot_positions[np.minimum(slots_EP, last)]
    lowest[chosen] = np.where(is_set_EP, positions_EP, _FAR).min(axis=1, initial=_FAR)
    highest[chosen] = np.where(is_set_EP, positions_EP, -1).max(axis=1, initial=-1)
    return EntryPositions(lowest, highest)


def work_list(
    rows: AttentionRows,
    entries: PageEntries,
    members: I64,
    tiling: Tiling,
    *,
    window: int | None = None,
    positions: EntryPositions | None = None,
) -> WorkList:
    """The work of the rows ``members``.

    With ``positions``, ranges of columns that no token of a tile can see are left out; rows with an
    explicit mask keep all of theirs.
    """
    num_new = np.diff(rows.row_starts)[members]
    tiles_of_row = -(-num_new // tiling.tile_tokens)
    place = np.repeat(np.arange(len(members)), tiles_of_row)
    number = np.arange(len(place)) - np.repeat(np.cumsum(tiles_of_row) - tiles_of_row, tiles_of_row)
    row_I = members[place]
    first_I = rows.row_starts[row_I] + number * tiling.tile_tokens
    tokens_I = np.minimum(tiling.tile_tokens, rows.row_starts[row_I + 1] - first_I)
    low_I, high_I = np.zeros(len(row_I), np.int64), entries.counts[row_I]
    if positions is not None and len(row_I):
        low_I, high_I = _entry_range(rows, entries, positions, row_I, first_I, tokens_I, window)
    begin_I = low_I * rows.page_size // tiling.column_block * tiling.column_block
    end_I = high_I * rows.page_size
    mask_I = entries.mask_starts[row_I]
    stride_I = np.where(mask_I >= 0, entries.counts[row_I], 0)
    mask_I = np.where(mask_I >= 0, mask_I + number * tiling.tile_tokens * stride_I, -1)
    columns = (entries.starts[row_I], first_I, tokens_I, begin_I, end_I, mask_I, stride_I)
    return _split(columns, tiling)


def _split(columns: tuple[I64, ...], tiling: Tiling) -> WorkList:
    starts_I, first_I, tokens_I, begin_I, end_I, mask_I, stride_I = columns
    length_I = np.maximum(end_I - begin_I, 1)
    longest = tiling.split_columns or int(length_I.max(initial=1))
    parts_I = -(-length_I // longest)
    tile_W = np.repeat(np.arange(len(parts_I)), parts_I)
    part_W = np.arange(len(tile_W)) - np.repeat(np.cumsum(parts_I) - parts_I, parts_I)
    is_part_W = parts_I[tile_W] > 1
    partial_W = np.where(is_part_W, np.cumsum(is_part_W) - 1, -1)
    begin_W = begin_I[tile_W] + part_W * longest
    items = np.stack(
        (
            starts_I[tile_W],
            first_I[tile_W],
            tokens_I[tile_W],
            begin_W,
            np.minimum(begin_W + longest, end_I[tile_W]),
            partial_W,
            mask_I[tile_W],
            stride_I[tile_W],
        ),
        axis=1,
    )
    split = np.flatnonzero(parts_I > 1)
    first_partial = (np.cumsum(parts_I[split]) - parts_I[split]).astype(np.int64)
    merges = np.stack((first_I[split], tokens_I[split], first_partial, parts_I[split]), axis=1)
    return WorkList(items.astype(np.int32), merges.astype(np.int32), int(parts_I[split].sum()))


def _entry_range(
    rows: AttentionRows,
    entries: PageEntries,
    positions: EntryPositions,
    row_I: I64,
    first_I: I64,
    tokens_I: I64,
    window: int | None,
) -> tuple[I64, I64]:
    """Per tile, the first entry that one of its tokens may see and the one after the last."""
    last_I = first_I + tokens_I - 1
    bounds = np.stack((first_I, last_I + 1), axis=1).reshape(-1)
    padded = np.concatenate((rows.positions, rows.positions[-1:]))
    highest_I = np.maximum.reduceat(padded, bounds)[::2].astype(np.int64)
    lowest_I = np.minimum.reduceat(padded, bounds)[::2].astype(np.int64)
    counts_I = entries.counts[row_I]
    tile_X = np.repeat(np.arange(len(row_I)), counts_I)
    entry_X = np.arange(len(tile_X)) - np.repeat(np.cumsum(counts_I) - counts_I, counts_I)
    at_X = entries.starts[row_I][tile_X] + entry_X
    useful_X = positions.lowest[at_X] <= highest_I[tile_X]
    if window is not None:
        useful_X &= positions.highest[at_X] > lowest_I[tile_X] - window
    useful_X |= (entries.mask_starts[row_I] >= 0)[tile_X]
    low_I, high_I = counts_I.copy(), np.zeros(len(row_I), np.int64)
    np.minimum.at(low_I, tile_X[useful_X], entry_X[useful_X])
    np.maximum.at(high_I, tile_X[useful_X], entry_X[useful_X] + 1)
    return np.minimum(low_I, high_I), high_I
