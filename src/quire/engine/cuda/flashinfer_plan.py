"""A step's rows in the form of FlashInfer's paged attention: CSR page lists, masks, shared
prefixes.

Pure numpy. FlashInfer sees a request as an ordered list of keys in pages that are full except the
last, and derives causality and windows from the index in that list. Rows of this form are passed as
pages. All others (holes, positions with gaps or out of order, tokens without a slot) are passed as
lists of single slots, pages of size one, ordered by position; where index and position still
differ, and for explicit masks, with a mask.

Shapes: R rows, T new tokens, C visible slots of all rows, P pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionRows
from quire.engine.cuda.page_entries import PageEntries

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestSegment:
    """Requests of one call. ``tokens``: indices of their new tokens in the step, in order.

    Request i has the queries ``qo_indptr[i]:qo_indptr[i + 1]`` and the pages
    ``kv_indices[kv_indptr[i]:kv_indptr[i + 1]]``, the last of which holds ``last_page_len[i]``
    keys. ``mask``: which keys each query sees, request by request, ``[queries * keys]``; without
    one a query sees the keys up to its own index, counted from the end. ``blind``: the segment's
    queries that see nothing at all.
    """

    tokens: I64
    qo_indptr: I32
    kv_indptr: I32
    kv_indices: I32
    last_page_len: I32
    page_size: int
    mask: NDArray[np.bool_] | None = None
    blind: I64 = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class SlotsByRow:
    """The visible slots of rows in entry order, CSR, including new tokens.

    ``columns``: the bit of each slot in the row's masks.
    """

    starts: I64
    slots: I64
    positions: I64
    columns: I64


def visible_keys(rows: AttentionRows, entries: PageEntries, members: I64) -> SlotsByRow:
    """Every slot of the rows ``members`` whose bit is set, and none of other rows."""
    is_member = np.zeros(entries.num_rows, np.bool_)
    is_member[members] = True
    chosen = np.flatnonzero(np.repeat(is_member, entries.counts))
    offsets = np.arange(rows.page_size, dtype=np.uint64)
    is_set_PC = (entries.words[chosen, None] >> offsets) & np.uint64(1) != 0
    place, offset = np.nonzero(is_set_PC)
    entry = chosen[place]
    slots = entries.blocks[entry].astype(np.int64) * rows.page_size + offset
    starts = np.searchsorted(entry, entries.starts)
    row_of_key = np.repeat(np.arange(entries.num_rows), np.diff(starts))
    columns = (entry - entries.starts[row_of_key]) * rows.page_size + offset
    return SlotsByRow(starts, slots, rows.slot_positions[slots].astype(np.int64), columns)


def segments(
    rows: AttentionRows, entries: PageEntries, keys: SlotsByRow, members: I64, window: int | None
) -> list[RequestSegment]:
    """The rows ``members`` as at most three calls: pages, ordered slots, masked slots. Rows that
    see no slot at all are left out."""
    plain = np.array([_is_plain(rows, entries, keys, row, window) for row in members], np.bool_)
    found = [_paged(rows, entries, members[plain])] if plain.any() else []
    lists = [_SlotList.of(rows, entries, keys, int(row), window) for row in members[~plain]]
    for masked in (False, True):
        some = [one for one in lists if len(one.slots) and (one.mask is not None) == masked]
        if some:
            found.append(_listed(rows, some))
    return found


def _is_plain(
    rows: AttentionRows, entries: PageEntries, keys: SlotsByRow, row: int, window: int | None
) -> bool:
    """Whether index and position agree in this row, and its pages are full except the last."""
    if entries.mask_starts[row] >= 0 or entries.starts[row] == entries.starts[row + 1]:
        return False
    words = entries.words[entries.starts[row] : entries.starts[row + 1]]
    full = (1 << rows.page_size) - 1
    last = int(words[-1])
    if (words[:-1] != full).any() or last & (last + 1):
        return False
    positions = keys.positions[keys.starts[row] : keys.starts[row + 1]]
    slots = keys.slots[keys.starts[row] : keys.starts[row + 1]]
    tokens = slice(int(rows.row_starts[row]), int(rows.row_starts[row + 1]))
    new = rows.slots[tokens]
    if len(new) > len(slots) or (slots[len(slots) - len(new) :] != new).any():
        return False
    steps = np.diff(positions)
    return bool((steps > 0).all() if window is None else (steps == 1).all())


def _paged(rows: AttentionRows, entries: PageEntries, members: I64) -> RequestSegment:
    counts = entries.counts[members]
    pages = _ranges(entries.starts[members], counts)
    last_words = entries.words[entries.starts[members + 1] - 1]
    last_page_len = [int(word).bit_count() for word in last_words]
    return RequestSegment(
        tokens=_tokens(rows, members),
        qo_indptr=_indptr(np.diff(rows.row_starts)[members]),
        kv_indptr=_indptr(counts),
        kv_indices=entries.blocks[pages],
        last_page_len=np.array(last_page_len, np.int32),
        page_size=rows.page_size,
    )


@dataclass(frozen=True, slots=True)
class _SlotList:
    """One row as single slots. ``mask`` ``[num_new, slots]`` where the order does not suffice;
    ``blind`` ``[num_new]``: which new tokens see nothing."""

    row: int
    slots: I64
    mask: NDArray[np.bool_] | None
    blind: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        rows: AttentionRows,
        entries: PageEntries,
        keys: SlotsByRow,
        row: int,
        window: int | None,
    ) -> _SlotList:
        span = slice(int(keys.starts[row]), int(keys.starts[row + 1]))
        tokens = slice(int(rows.row_starts[row]), int(rows.row_starts[row + 1]))
        order = np.argsort(keys.positions[span], kind="stable")
        slots, positions = keys.slots[span][order], keys.positions[span][order]
        new, asked = rows.slots[tokens], rows.positions[tokens].astype(np.int64)
        if entries.mask_starts[row] >= 0:
            shown = _explicit(rows, entries, row, keys.columns[span][order])
        else:
            shown = positions < asked[:, None]
            shown |= slots == new[:, None]
        if window is not None:
            shown &= positions > asked[:, None] - window
        some = shown.any(axis=0)  # slots that no token sees are left out
        slots, shown = slots[some], shown[:, some]
        by_place = np.tri(len(new), len(slots), len(slots) - len(new), dtype=np.bool_)
        mask = None if (shown == by_place).all() else shown
        sees = np.logical_or.reduce(shown, axis=1)
        return cls(row, slots, mask, ~sees)


def _explicit(
    rows: AttentionRows, entries: PageEntries, row: int, columns: I64
) -> NDArray[np.bool_]:
    num_entries = int(entries.counts[row])
    num_new = int(rows.row_starts[row + 1] - rows.row_starts[row])
    start = int(entries.mask_starts[row])
    words = entries.mask_words[start : start + num_new * num_entries].reshape(num_new, num_entries)
    entry, offset = np.divmod(columns, rows.page_size)
    shown: NDArray[np.bool_] = (words[:, entry] >> offset.astype(np.uint64)) & np.uint64(1) != 0
    return shown


def _listed(rows: AttentionRows, lists: list[_SlotList]) -> RequestSegment:
    members = np.array([one.row for one in lists], np.int64)
    masks = [one.mask.reshape(-1) for one in lists if one.mask is not None]
    return RequestSegment(
        tokens=_tokens(rows, members),
        qo_indptr=_indptr(np.diff(rows.row_starts)[members]),
        kv_indptr=_indptr(np.array([len(one.slots) for one in lists])),
        kv_indices=np.concatenate([one.slots for one in lists]).astype(np.int32),
        last_page_len=np.ones(len(lists), np.int32),
        page_size=1,
        mask=np.concatenate(masks) if masks else None,
        blind=np.flatnonzero(np.concatenate([one.blind for one in lists])),
    )


def _tokens(rows: AttentionRows, members: I64) -> I64:
    return _ranges(rows.row_starts[members], np.diff(rows.row_starts)[members])


def _ranges(starts: I64, counts: I64) -> I64:
    """``starts[i] .. starts[i] + counts[i] - 1`` for all i, concatenated."""
    begins = np.cumsum(counts) - counts
    places: I64 = np.repeat(starts - begins, counts) + np.arange(int(counts.sum()))
    return places


def _indptr(counts: I64) -> I32:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
