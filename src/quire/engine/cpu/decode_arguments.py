"""The arguments of the kernel's decode loop: its rows, and the destination of its results.

Owns the struct and the arrays that it points to, across messages. Consecutive messages are mostly
equal, and in between the kernel reads the whole model, so that everything here runs with cold
caches: only values that changed are written.

Shapes: R rows, S steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.engine.cpu.decode_abi import DecodeRows
from quire.engine.kv_cache.page_tables import PageTables, TablePages
from quire.engine.model_runner import FusedRows, FusedTokens
from quire.engine.sampling.plan import CommonParameters


class DecodeArguments:
    """The arguments of one runner's calls. ``struct``: those filled in last; its arrays live until
    the next ``fill``."""

    def __init__(self) -> None:
        self.struct = DecodeRows()
        self._common: CommonParameters | None = None
        self._tables: tuple[NDArray[Any], ...] = ()
        self._kept: tuple[NDArray[Any], ...] = ()

    def fill(self, rows: FusedRows, common: CommonParameters, pages: TablePages) -> FusedTokens:
        """Prepare one call; returns the arrays that the kernel will write results to."""
        num_rows, num_steps = len(rows.tokens_R), rows.num_steps
        self._set_tables(pages.tables)
        self._set_samplers(common)
        in_KR = np.array(
            (pages.rows_R, rows.tokens_R, rows.cursors_R, rows.steps_R, rows.min_steps_R), np.int64
        )
        positions_R = np.ascontiguousarray(rows.rows.positions, np.int32)
        stops_RW = np.ascontiguousarray(rows.stop_tokens_RW, np.int64)
        adapters_R = rows.rows.adapters
        if adapters_R is not None:
            adapters_R = np.ascontiguousarray(adapters_R, np.int32)
        tokens_SR = np.empty((num_steps + 1, num_rows), np.int64)  # the last row holds the counts
        flags_2R = np.empty((2, num_rows), np.bool_)
        self._kept = in_KR, positions_R, stops_RW, tokens_SR, flags_2R
        struct = self.struct
        struct.num_rows, struct.num_steps = num_rows, num_steps
        row_bytes = num_rows * in_KR.itemsize
        address = in_KR.ctypes.data
        struct.tables, struct.tokens = address, address + row_bytes
        struct.cursors, struct.steps = address + 2 * row_bytes, address + 3 * row_bytes
        struct.min_steps = address + 4 * row_bytes
        struct.positions = positions_R.ctypes.data
        struct.stop_tokens, struct.num_stop_tokens = stops_RW.ctypes.data, stops_RW.shape[1]
        struct.adapters = None
        if adapters_R is not None:
            self._kept += (adapters_R,)
            struct.adapters = adapters_R.ctypes.data
        struct.sampled = tokens_SR.ctypes.data
        struct.counts = struct.sampled + num_steps * row_bytes
        struct.stopped = flags_2R.ctypes.data
        struct.failed = struct.stopped + num_rows
        return FusedTokens(
            tokens_SR[:-1], tokens_SR[-1], flags_2R[0], flags_2R[1], is_revealed=True
        )

    def _set_tables(self, tables: PageTables) -> None:
        arrays = tables.blocks_TP, tables.visible_TP, tables.num_pages_T
        if all(a is b for a, b in zip(arrays, self._tables, strict=False)) and self._tables:
            return
        self._tables = arrays
        struct = self.struct
        struct.table_blocks, struct.table_width = arrays[0].ctypes.data, arrays[0].shape[1]
        struct.visible = struct.table_visible = arrays[1].ctypes.data
        struct.table_num_pages = arrays[2].ctypes.data

    def _set_samplers(self, common: CommonParameters) -> None:
        if common is self._common:
            return
        self._common = common
        struct = self.struct
        struct.greedy = common.greedy.ctypes.data
        struct.top_k, struct.temperature = common.top_k.ctypes.data, common.temperature.ctypes.data
        struct.min_p, struct.top_p = common.min_p.ctypes.data, common.top_p.ctypes.data
        struct.seeds = common.seeds.ctypes.data
