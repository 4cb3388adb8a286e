"""Attention of decoding rows for a whole message, from fixed memory that recorded steps read.

All steps are planned at once: the bits of the slots that the steps will append to are set from the
start, and their positions are written ahead, so that each step sees exactly the slots before it. No
step needs the host.

Shapes: B rows of a bucket, R rows, E entries, N heads, K KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionAttributes, AttentionRows
from quire.engine.cuda.attention_launch import (
    AttentionBuffers,
    AttentionLaunch,
    Partials,
    launch,
    padded_head,
    tile_rows,
)
from quire.engine.cuda.decode_state import DecodeState
from quire.engine.cuda.page_entries import PageEntries, page_entries
from quire.engine.cuda.triton_attention import (
    COLUMN_BLOCK,
    TritonAttention,
    num_processors,
    num_programs,
    split_columns,
)
from quire.engine.cuda.upload import upload
from quire.engine.cuda.work_list import Tiling, WorkList, entry_positions, work_list
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.model_runner import FusedRows

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The heads of the model, their dtype, and the windows of its layers (None: a layer without
    one)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    windows: tuple[int | None, ...]


class StaticAttention:
    """Fixed memory for up to ``max_entries`` page entries in all rows of ``state``."""

    def __init__(
        self,
        backend: TritonAttention,
        shape: AttentionShape,
        state: DecodeState,
        max_entries: int,
        page_size: int,
    ) -> None:
        self.backend, self._shape, self._state = backend, shape, state
        self._page_size = page_size
        device = backend.device
        self._blocks_E = torch.zeros(max_entries, dtype=torch.int32, device=device)
        self._words_E = torch.zeros(max_entries, dtype=torch.int64, device=device)
        self._no_words = torch.zeros(1, dtype=torch.int64, device=device)
        # ranges are cut so that there are at most two more per processor than one per row
        most = state.max_rows + 2 * num_processors(device) + 1
        group = shape.num_heads // shape.num_kv_heads
        self._tiling = Tiling(max(1, 16 // group), COLUMN_BLOCK, COLUMN_BLOCK)
        if backend.batch_invariant:
            self._tiling = replace(self._tiling, split_columns=None)
        rows = tile_rows(self._tiling.tile_tokens, group)
        self._partials = Partials.empty(
            1 if backend.batch_invariant else most,
            shape.num_kv_heads,
            rows,
            padded_head(shape.head_dim),
            device,
        )
        self._launches = {window: self._empty_launch(most) for window in shape.windows}
        # zeroed once: rows without work keep the output of an earlier step, which is never used
        size = (state.max_rows, shape.num_heads, shape.head_dim)
        self._out_BND = torch.zeros(size, dtype=shape.dtype, device=device)

    def begin(self, rows: FusedRows) -> bool:
        """Plan a message of these rows; False if their pages exceed the memory.

        Sets the positions of the slots that the steps will write, on the host and the device.
        """
        ahead = _rows_ahead(rows)
        ahead.slot_positions[ahead.slots] = ahead.positions
        return self.take(ahead, page_entries(ahead), rows.num_steps)

    def take(self, ahead: AttentionRows, entries: PageEntries, num_steps: int) -> bool:
        """Plan rows with the tokens of up to ``num_steps`` steps, as ``begin`` does. Their
        positions are already set on the host."""
        if len(entries.blocks) > len(self._blocks_E):
            return False
        arrays: dict[str, NDArray[np.generic]] = {
            "blocks": entries.blocks,
            "words": entries.words,
            "slots": ahead.slots,
            "positions": ahead.positions,
        }
        has_window = any(window is not None for window in self._launches)
        members = np.flatnonzero(np.diff(ahead.row_starts))
        bounds = entry_positions(ahead, entries, members) if has_window else None
        num_columns = int(entries.starts[-1]) * self._page_size
        split = split_columns(
            num_columns, self._shape.num_kv_heads, num_processors(self.backend.device)
        )
        tiling = Tiling(num_steps, COLUMN_BLOCK, None if self.backend.batch_invariant else split)
        for number, window in enumerate(self._launches):
            work = work_list(ahead, entries, members, tiling, window=window, positions=bounds)
            work = _one_token_each(work, ahead.row_starts)
            arrays[f"items{number}"], arrays[f"merges{number}"] = work.items, work.merges
            arrays[f"counts{number}"] = np.array([len(work.items), len(work.merges)], np.int32)
        self._fill(upload(arrays, self.backend.device))
        return True

    def plan(self, size: int) -> StaticPlan:
        """``AttentionPlan`` of the first ``size`` rows of the state at the time of a step."""
        buffers = AttentionBuffers(
            blocks=self._blocks_E,
            words=self._words_E,
            mask_words=self._no_words,
            positions=self._state.positions_B[:size],
            slots=self._state.slots_B[:size],
            slot_positions=self.backend.slot_positions_S,
        )
        programs = num_programs(self.backend.device)
        return StaticPlan(
            self._launches,
            buffers,
            self._partials,
            self._out_BND[:size],
            self._page_size,
            programs,
        )

    def _empty_launch(self, most: int) -> AttentionLaunch:
        def empty(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=self.backend.device)

        return AttentionLaunch(
            empty(most, 8), empty(most, 4), empty(2), self._tiling, 0, has_masks=False
        )

    def _fill(self, values: dict[str, Tensor]) -> None:
        self._blocks_E[: len(values["blocks"])] = values["blocks"]
        self._words_E[: len(values["words"])] = values["words"]
        self.backend.slot_positions_S.index_copy_(0, values["slots"], values["positions"])
        for number, target in enumerate(self._launches.values()):
            for name, whole in (
                ("items", target.items),
                ("merges", target.merges),
                ("counts", target.counts),
            ):
                part = values[f"{name}{number}"]
                assert len(part) <= len(whole), f"{len(part)} {name} in memory for {len(whole)}"
                whole[: len(part)] = part


@dataclass(frozen=True, slots=True)
class StaticPlan:
    """``AttentionPlan`` over fixed memory."""

    launches: dict[int | None, AttentionLaunch]
    buffers: AttentionBuffers
    partials: Partials
    out_BND: Tensor
    page_size: int
    num_programs: int

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        """The output is valid until the next layer's."""
        launch(
            self.launches[attributes.window],
            self.buffers,
            q_TND,
            cache,
            attributes,
            self.out_BND,
            page_size=self.page_size,
            num_programs=self.num_programs,
            partials=self.partials,
        )
        return self.out_BND.flatten(1)


def _rows_ahead(rows: FusedRows) -> AttentionRows:
    """The rows with the tokens of all their steps as new tokens."""
    counts = np.minimum(rows.steps_R, rows.num_steps)
    runs_RS = np.arange(rows.num_steps) < counts[:, None]
    positions_RS = rows.rows.positions[:, None] + np.arange(rows.num_steps, dtype=np.int32)
    return replace(
        rows.rows,
        row_starts=np.concatenate(([0], np.cumsum(counts))),
        positions=positions_RS[runs_RS].astype(np.int32),
        slots=rows.slots_RS[runs_RS],
    )


def _one_token_each(work: WorkList, row_starts: I64) -> WorkList:
    """Turn the work of all steps' tokens into work of one token per row, with index r for row r."""

    def rows_of(first: I32) -> I64:
        rows: I64 = np.searchsorted(row_starts, first, side="right") - 1
        return rows

    items, merges = work.items.copy(), work.merges.copy()
    items[:, 1], items[:, 2] = rows_of(items[:, 1]), 1
    merges[:, 0], merges[:, 1] = rows_of(merges[:, 0]), 1
    return WorkList(items, merges, work.num_partials)
