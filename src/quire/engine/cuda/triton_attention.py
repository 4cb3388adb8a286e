"""``AttentionBackend`` over the kernels of ``cuda.kernels.attention``.

Serves every row that the reference serves, in one or two launches per layer: rows with few new
tokens use small tiles, prompt chunks large ones. In batch-invariant mode all rows use the same tile
and no row is split, so that every token sums in one order in any batch.

Shapes: T new tokens, N heads, K KV heads, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionAttributes, AttentionRows
from quire.engine.cuda.attention_launch import AttentionBuffers, AttentionLaunch, launch
from quire.engine.cuda.page_entries import PageEntries, page_entries
from quire.engine.cuda.upload import upload
from quire.engine.cuda.work_list import EntryPositions, Tiling, entry_positions, work_list
from quire.engine.kv_cache.page_tables import PageLists, TablePages
from quire.engine.kv_cache.torch_pool import LayerCache

I64 = NDArray[np.int64]

COLUMN_BLOCK = 64
"""Columns (slots) that a program reads at a time."""

_SMALL_ROWS = 16
"""Rows (tokens times heads of a group) of a small tile: the tensor cores' minimum."""

_LARGE_ROWS = 64
_PROGRAMS_PER_PROCESSOR = 4


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """``slot_positions_S``: int32, the positions of the pool's slots on the device."""

    device: torch.device
    slot_positions_S: Tensor
    heads_per_group: int
    num_kv_heads: int
    batch_invariant: bool = False

    name = "triton"

    def plan(self, rows: AttentionRows) -> TritonPlan:
        return TritonPlan(self, rows, page_entries(rows), np.arange(rows.num_rows))

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> TritonDecodePlan:
        return TritonDecodePlan(self, rows)

    def tilings(self, members: I64, num_new: I64, num_columns: int) -> list[tuple[I64, Tiling]]:
        """The launches for the rows ``members`` of ``num_new`` tokens each: which rows, and how
        their work is cut. ``num_columns``: of all rows together."""
        small = max(1, _SMALL_ROWS // self.heads_per_group)
        if self.batch_invariant:
            return [(members, Tiling(small, COLUMN_BLOCK, None))]
        few, many = members[num_new <= small], members[num_new > small]
        large = max(1, _LARGE_ROWS // self.heads_per_group)
        split = split_columns(num_columns, self.num_kv_heads, num_processors(self.device))
        launches = [
            (few, Tiling(small, COLUMN_BLOCK, split)),
            (many, Tiling(large, COLUMN_BLOCK, None)),
        ]
        return [(some, tiling) for some, tiling in launches if len(some)]


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors; 8 where the interpreter replaces a device."""
    if device.type != "cuda":
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def num_programs(device: torch.device) -> int:
    """Programs of a launch, which divide the work among themselves."""
    return _PROGRAMS_PER_PROCESSOR * num_processors(device)


def split_columns(num_columns: int, num_kv_heads: int, processors: int) -> int:
    """The longest range with which ``num_columns`` columns give every processor two ranges.

    A multiple of the column block, at least two of them: if processors are idle, reading blocks in
    parallel is worth a merge, unless the parts take less time than the merge.
    """
    wanted = num_columns * num_kv_heads / (2 * processors)
    blocks = max(2, math.ceil(wanted / COLUMN_BLOCK))
    return blocks * COLUMN_BLOCK


class TritonPlan:
    """``AttentionPlan`` of the rows ``members`` of a step. Sets the positions of all new tokens'
    slots on the device; work lists are built at the first layer of each window."""

    def __init__(
        self, backend: TritonAttention, rows: AttentionRows, entries: PageEntries, members: I64
    ) -> None:
        self._backend, self._rows, self._entries = backend, rows, entries
        self._members = members
        self._num_new = np.diff(rows.row_starts)[members]
        self._positions: dict[bool, EntryPositions] = {}
        self._launches: dict[int | None, list[AttentionLaunch]] = {}
        self._buffers = AttentionBuffers(
            **upload(
                {
                    "blocks": entries.blocks,
                    "words": entries.words,
                    "mask_words": entries.mask_words,
                    "positions": rows.positions.astype(np.int32),
                    "slots": rows.slots.astype(np.int64),
                },
                backend.device,
            ),
            slot_positions=backend.slot_positions_S,
        )
        backend.slot_positions_S.index_copy_(0, self._buffers.slots, self._buffers.positions)

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        out_TND = torch.empty_like(q_TND, memory_format=torch.contiguous_format)
        self.attend_into(q_TND, cache, attributes, out_TND)
        return out_TND.flatten(1)

    def attend_into(
        self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes, out_TND: Tensor
    ) -> None:
        """Write the output ``[T, N, D]`` of the members' tokens."""
        window = attributes.window
        if window not in self._launches:
            self._launches[window] = self._make_launches(window)
        for one in self._launches[window]:
            launch(
                one,
                self._buffers,
                q_TND,
                cache,
                attributes,
                out_TND,
                page_size=self._rows.page_size,
                num_programs=num_programs(self._backend.device),
            )

    def _make_launches(self, window: int | None) -> list[AttentionLaunch]:
        rows, entries = self._rows, self._entries
        positions = self._bounds(has_window=window is not None)
        num_columns = int(entries.starts[-1]) * rows.page_size
        return [
            AttentionLaunch.of(
                work_list(rows, entries, members, tiling, window=window, positions=positions),
                tiling,
                self._backend.device,
                has_masks=bool(rows.masks),
            )
            for members, tiling in self._backend.tilings(self._members, self._num_new, num_columns)
        ]

    def _bounds(self, *, has_window: bool) -> EntryPositions | None:
        """The positions by which columns can be left out. A single token sees everything before it,
        so without a window they matter only to rows with several tokens."""
        bounded = self._members if has_window else self._members[self._num_new > 1]
        if not len(bounded):
            return None
        if has_window not in self._positions:
            self._positions[has_window] = entry_positions(self._rows, self._entries, bounded)
        return self._positions[has_window]


class TritonDecodePlan:
    """``DecodePlan``: every step is planned from the entries of the previous step, whose words
    include the bits of all tokens appended so far."""

    def __init__(self, backend: TritonAttention, rows: AttentionRows) -> None:
        self._backend = backend
        self._rows = rows
        self._plan: TritonPlan | None = None

    def advance(self, slots_R: I64, positions_R: I32) -> None:
        rows = replace(
            self._rows,
            row_starts=np.arange(len(slots_R) + 1),
            positions=positions_R,
            slots=slots_R,
        )
        rows.slot_positions[slots_R] = positions_R
        entries = page_entries(rows)
        self._begin(rows, entries)
        behind = _behind(self._rows.pages, entries)
        self._rows = replace(rows, pages=behind)

    def _begin(self, rows: AttentionRows, entries: PageEntries) -> None:
        """Prepare attention in this step."""
        self._plan = TritonPlan(self._backend, rows, entries, np.arange(rows.num_rows))

    def keep(self, rows: I64) -> None:
        pages = self._rows.pages
        counts = np.diff(pages.starts)[rows]
        starts = np.concatenate(([0], np.cumsum(counts)))
        index = np.repeat(pages.starts[rows] - starts[:-1], counts) + np.arange(starts[-1])
        self._rows = replace(
            self._rows, pages=PageLists(starts, pages.blocks[index], pages.visible[index])
        )

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        assert self._plan is not None, "advance() comes before the first step"
        return self._plan.attend(q_TND, cache, attributes)


def _behind(pages: PageLists | TablePages, entries: PageEntries) -> PageLists:
    """``entries`` followed, row by row, by the pages that are still empty."""
    missing = np.maximum(np.diff(pages.starts) - entries.counts, 0)
    row_of_missing = np.repeat(np.arange(entries.num_rows), missing)
    within = np.arange(len(row_of_missing)) - np.repeat(np.cumsum(missing) - missing, missing)
    index = pages.starts[row_of_missing] + entries.counts[row_of_missing] + within
    all_rows = np.concatenate(
        (np.repeat(np.arange(entries.num_rows), entries.counts), row_of_missing)
    )
    order = np.argsort(all_rows, kind="stable")
    starts = np.concatenate(([0], np.cumsum(entries.counts + missing)))
    return PageLists(
        starts,
        np.concatenate((entries.blocks, pages.blocks[index]))[order],
        np.concatenate((entries.words, pages.visible[index]))[order],
    )
