"""Page lists in the form that kernels read: a flat list of (block, word) entries, new tokens
included.

Pure numpy. A row's own new slots are merged into its entries: the bit of each is set in the first
entry that holds its block and cleared in all others, so that a slot is seen once. Slots that are in
no entry (scratch slots of tokens that are not kept) get entries of their own after the row's pages;
scratch slots are numbered after the blocks, so they form blocks like any other.

Shapes: R rows, T new tokens, E entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import I32, U64
from quire.engine.attention.backend import AttentionRows

I64 = NDArray[np.int64]

_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class PageEntries:
    """Entries of all rows in CSR form: row r owns ``starts[r]:starts[r + 1]``.

    ``mask_words``: the explicit masks by entry. Those of token t of row r begin at ``mask_starts[r]
    + t * (number of r's entries)``; -1 for rows without a mask. Their set bits are those that a
    token sees; rows without a mask use positions.
    """

    starts: I64
    blocks: I32
    words: U64
    mask_words: U64
    mask_starts: I64

    @property
    def num_rows(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> I64:
        return np.diff(self.starts)


@dataclass(frozen=True, slots=True)
class _OwnBits:
    """Slots that rows write, as distinct (row, block) pairs in ascending order, with their bits."""

    rows: I64
    blocks: I64
    bits: U64


def page_entries(rows: AttentionRows) -> PageEntries:
    """The entries of every row; entries after a row's last set bit are left out."""
    own = _own_bits(rows)
    words = rows.pages.visible.copy()
    row_of_entry = np.repeat(np.arange(rows.num_rows), np.diff(rows.pages.starts))
    missing = _fold(own, rows, row_of_entry, words)
    kept = _before_last_set(words, rows.pages.starts, row_of_entry)
    if rows.masks:  # a mask's columns begin at the first page, so its row keeps every entry
        kept |= np.isin(row_of_entry, np.fromiter(rows.masks, np.int64))
    all_rows = np.concatenate((row_of_entry[kept], own.rows[missing]))
    order = np.argsort(all_rows, kind="stable")
    starts = np.zeros(rows.num_rows + 1, np.int64)
    np.cumsum(np.bincount(all_rows, minlength=rows.num_rows), out=starts[1:])
    blocks = np.concatenate((rows.pages.blocks[kept], own.blocks[missing].astype(np.int32)))[order]
    words = np.concatenate((words[kept], own.bits[missing]))[order]
    mask_words, mask_starts = _mask_words(rows, starts, blocks)
    return PageEntries(starts, blocks, words, mask_words, mask_starts)


def _own_bits(rows: AttentionRows) -> _OwnBits:
    row_of_token = np.repeat(np.arange(rows.num_rows), np.diff(rows.row_starts))
    blocks, offsets = np.divmod(rows.slots, rows.page_size)
    num_blocks = len(rows.slot_positions) // rows.page_size + 1
    keys, places = np.unique(row_of_token * num_blocks + blocks, return_inverse=True)
    bits = np.zeros(len(keys), np.uint64)
    np.bitwise_or.at(bits, places, np.uint64(1) << offsets.astype(np.uint64))
    return _OwnBits(keys // num_blocks, keys % num_blocks, bits)


def _fold(own: _OwnBits, rows: AttentionRows, row_of_entry: I64, words: U64) -> NDArray[np.bool_]:
    """Merge own bits into ``words``; returns which pairs of ``own`` have no entry."""
    missing = np.ones(len(own.rows), np.bool_)
    num_blocks = len(rows.slot_positions) // rows.page_size + 1
    is_written = np.zeros(num_blocks, np.bool_)
    is_written[own.blocks] = True
    candidates = np.flatnonzero(is_written[rows.pages.blocks])
    if not len(candidates):
        return missing
    keys = own.rows * num_blocks + own.blocks
    wanted = row_of_entry[candidates] * num_blocks + rows.pages.blocks[candidates]
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    mine = keys[places] == wanted
    candidates, places = candidates[mine], places[mine]
    words[candidates] &= ~own.bits[places]
    found, first = np.unique(places, return_index=True)
    words[candidates[first]] |= own.bits[found]
    missing[found] = False
    return missing


def _before_last_set(words: U64, starts: I64, row_of_entry: I64) -> NDArray[np.bool_]:
    """The entries that are not after their row's last entry with a set bit, as bool."""
    last = np.full(len(starts) - 1, -1, np.int64)
    entries = np.flatnonzero(words)
    last[row_of_entry[entries]] = entries  # entries ascend, so the last assignment remains
    kept: NDArray[np.bool_] = np.arange(len(words)) <= last[row_of_entry]
    return kept


def _mask_words(rows: AttentionRows, starts: I64, blocks: I32) -> tuple[U64, I64]:
    mask_starts = np.full(rows.num_rows, -1, np.int64)
    parts: list[U64] = []
    size = 0
    for row, mask in sorted(rows.masks.items()):
        tokens = slice(int(rows.row_starts[row]), int(rows.row_starts[row + 1]))
        words = _row_mask(
            mask, blocks[starts[row] : starts[row + 1]], rows.slots[tokens], rows.page_size
        )
        mask_starts[row] = size
        size += words.size
        parts.append(words.reshape(-1))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64), mask_starts


def _row_mask(mask: NDArray[np.bool_], blocks: I32, slots: I64, page_size: int) -> U64:
    """Words ``[num_new, num_entries]`` of a mask whose columns are table slots, then new tokens."""
    num_new, num_entries = len(mask), len(blocks)
    num_pages = (mask.shape[1] - num_new) // page_size
    shown = np.zeros((num_new, num_entries, _WORD_BITS), np.bool_)
    of_pages = mask[:, : num_pages * page_size].reshape(num_new, num_pages, page_size)
    shown[:, :num_pages, :page_size] = of_pages
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, page_size)
        shown[:, np.flatnonzero(blocks == block), offset] = mask[:, num_pages * page_size + token][
            :, None
        ]
    words: U64 = np.packbits(shown, axis=-1, bitorder="little").view(np.uint64)[..., 0]
    return words
