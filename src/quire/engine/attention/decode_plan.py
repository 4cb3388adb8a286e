"""The decode plan in PyTorch: the padded index and masks grow by one column per step.

Shapes: R rows, C columns in use, N heads, D head size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.attention.backend import AttentionAttributes
from quire.engine.attention.dot_product import attend
from quire.engine.attention.seen_slots import SeenSlots, SlotView
from quire.engine.attention.visible_slots import VisibleSlots
from quire.engine.kv_cache.torch_pool import LayerCache

I64 = NDArray[np.int64]


class PaddedDecodePlan:
    """``DecodePlan`` of the PyTorch backend.

    The slots are kept in host memory and copied once per step and window. Context slots at
    positions that the rows have not reached yet (pages with gaps) are kept in ``_late`` until then.
    """

    def __init__(
        self,
        context: VisibleSlots,
        positions_R: I32,
        num_steps: int,
        *,
        null_slot: int,
        view: SlotView,
    ) -> None:
        counts = context.counts
        width = int(counts.max(initial=0)) + num_steps
        self._lengths_R = counts
        self._slots_RC = np.full((len(counts), width), null_slot, np.int64)
        self._slots_RC[context.rows, context.offsets] = context.slots
        self._shown_RC = np.zeros((len(counts), width), np.bool_)
        self._positions_RC = np.zeros((len(counts), width), np.int32)
        self._positions_RC[context.rows, context.offsets] = context.positions
        self._now_R = positions_R
        seen = context.positions < positions_R[context.rows]
        self._shown_RC[context.rows[seen], context.offsets[seen]] = True
        self._late = np.stack((context.rows, context.offsets, context.positions))[:, ~seen]
        self._view = view
        self._seen: dict[int | None, SeenSlots] = {}

    def advance(self, slots_R: I64, positions_R: I32) -> None:
        rows = np.arange(len(slots_R))
        self._slots_RC[rows, self._lengths_R] = slots_R
        self._shown_RC[rows, self._lengths_R] = True
        self._positions_RC[rows, self._lengths_R] = positions_R
        self._now_R = positions_R
        self._lengths_R = self._lengths_R + 1
        if self._late.shape[1]:
            self._reveal_late(positions_R)
        self._seen.clear()

    def keep(self, rows: I64) -> None:
        place = np.full(len(self._lengths_R), -1)
        place[rows] = np.arange(len(rows))
        self._lengths_R = self._lengths_R[rows]
        self._slots_RC = self._slots_RC[rows]
        self._shown_RC = self._shown_RC[rows]
        self._positions_RC = self._positions_RC[rows]
        self._now_R = self._now_R[rows]
        self._late[0] = place[self._late[0]]
        self._late = self._late[:, self._late[0] >= 0]

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        seen = self._seen_from(attributes.window)
        shape = (len(q_TND), -1, *cache.keys_SKD.shape[1:])
        out_RN1D = attend(
            q_TND.unsqueeze(2),
            cache.keys_SKD.index_select(0, seen.slots).view(shape).transpose(1, 2),
            cache.values_SKD.index_select(0, seen.slots).view(shape).transpose(1, 2),
            seen.bias_R1QC,
            attributes,
        )
        return out_RN1D.flatten(1)

    def _seen_from(self, window: int | None) -> SeenSlots:
        """The slots that layers with this window see in this step; built on first use."""
        if window not in self._seen:
            used = int(self._lengths_R.max())
            shown_RC = self._shown_RC[:, :used]
            if window is not None:
                shown_RC = shown_RC & (self._positions_RC[:, :used] > self._now_R[:, None] - window)
            self._seen[window] = self._view.of(
                self._slots_RC[:, :used], shown_RC[:, None, :], windowed=window is not None
            )
        return self._seen[window]

    def _reveal_late(self, positions_R: I32) -> None:
        rows, columns, positions = self._late
        due = positions < positions_R[rows]
        self._shown_RC[rows[due], columns[due]] = True
        self._late = self._late[:, ~due]
