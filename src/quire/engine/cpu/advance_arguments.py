"""The kernel's arguments and results for a message that only advances sequences.

Owns the structs across messages: the columns stay in place, so that only the message's own values
are passed. See ``csrc/advance.h``.

Shapes: S entries of the message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import AdvanceRows
from quire.core.batch_result import SequenceTokens
from quire.engine.cpu.decode_abi import AdvanceMessage, SequenceColumns
from quire.engine.model_runner import AdvanceResult, SequenceState

_SEQUENCE_COLUMNS = (
    ("is_open", np.bool_),
    ("is_plain", np.bool_),
    *(
        (name, np.int64)
        for name in (
            "epoch",
            "table",
            "limit",
            "max_tokens",
            "min_tokens",
            "adapter",
            "cursor",
            "position",
            "last_token",
            "num_generated",
            "end",
            "matched",
        )
    ),
)
_TRUNCATIONS = ("top_k", "temperature", "min_p", "top_p")


class AdvanceArguments:
    """The arguments of one engine's calls. ``message``: the one filled in last, over the
    ``columns`` of ``state``."""

    def __init__(self, state: SequenceState) -> None:
        self.state = state
        self.message = AdvanceMessage(max_position=state.max_model_len)
        self.columns = SequenceColumns(capacity=state.sequences.capacity)
        sequences, samplers = state.sequences, state.samplers
        for name, dtype in _SEQUENCE_COLUMNS:
            self._point(name, getattr(sequences, name), dtype)
        self._point("greedy", samplers.greedy, np.bool_)
        self._point("seeds", samplers.seeds, np.uint64)
        for name in _TRUNCATIONS:
            self._point(name, samplers.scalars[name], np.float64)
        self._replaced: tuple[NDArray[Any], ...] = ()
        self._kept: tuple[NDArray[Any], ...] = ()

    def _point(self, name: str, column: NDArray[Any], dtype: type) -> None:
        assert column.dtype == dtype, name
        assert column.flags.c_contiguous, name
        setattr(self.columns, name, column.ctypes.data)

    def fill(self, rows: AdvanceRows, num_steps: int) -> None:
        """Prepare one call. The columns of ``rows`` have equal, non-zero length."""
        self._look_for_replaced()
        count = len(rows.sequences)
        steps = max(0, min(num_steps, int(rows.max_steps.max())))
        in_3S = np.array((rows.sequences, rows.epochs, rows.max_steps), np.int32)
        out = np.empty(3 * count + 1 + count * steps, np.int32)
        self._kept = in_3S, out
        message, row_bytes = self.message, count * in_3S.itemsize
        message.num_entries, message.num_steps = count, steps
        message.sequences = address = in_3S.ctypes.data
        message.epochs, message.max_steps = address + row_bytes, address + 2 * row_bytes
        message.ends = address = out.ctypes.data
        message.matched, message.token_starts = address + row_bytes, address + 2 * row_bytes
        message.tokens = address + 3 * row_bytes + out.itemsize

    def result(self) -> AdvanceResult | None:
        """The result of the call."""
        message, out = self.message, self._kept[1]
        if message.num_tokens < 0:
            return None
        count = int(message.num_entries)
        starts, tokens = out[2 * count : 3 * count + 1], out[3 * count + 1 :]
        answer = SequenceTokens(
            sequences=self._kept[0][0],
            epochs=self._kept[0][1],
            token_starts=starts,
            tokens=tokens[: starts[-1]],
            ends=out[:count],
            matched=out[count : 2 * count],
        )
        return AdvanceResult(answer, int(message.num_tokens), int(message.num_failed))

    def _look_for_replaced(self) -> None:
        """Update the pointers to arrays that are replaced when they grow."""
        tables, stop_tokens = self.state.tables, self.state.sequences.stop_tokens
        arrays = tables.blocks_TP, tables.visible_TP, tables.num_pages_T, stop_tokens
        if self._replaced and all(a is b for a, b in zip(arrays, self._replaced, strict=True)):
            return
        self._replaced = arrays
        message = self.message
        message.table_blocks, message.table_width = arrays[0].ctypes.data, arrays[0].shape[1]
        message.visible = message.table_visible = arrays[1].ctypes.data
        message.table_num_pages = arrays[2].ctypes.data
        self._point("stop_tokens", stop_tokens, np.int64)
        self.columns.num_stop_tokens = stop_tokens.shape[1]
