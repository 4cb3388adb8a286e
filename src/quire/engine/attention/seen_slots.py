"""The slots that layers with one window see in a step, as tensors on the device.

Shapes: R rows, Q queries per row, C slots per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SeenSlots:
    """``slots`` [R * C] to gather, an additive bias over them, and the queries (of R * Q) that see
    nothing (None: every query sees something)."""

    slots: Tensor
    bias_R1QC: Tensor
    blind: Tensor | None


class SlotView:
    """Makes ``SeenSlots`` on one device."""

    def __init__(self, device: torch.device, dtype: torch.dtype, null_slot: int) -> None:
        self._device = device
        self._dtype = dtype
        self._null_slot = null_slot

    def of(
        self,
        slots_RC: I64,
        seen_RQC: NDArray[np.bool_],
        *,
        windowed: bool,
        valid_RQ: NDArray[np.bool_] | None = None,
    ) -> SeenSlots:
        """Make the slots that queries see. ``windowed``: leave out slots that no query of a row
        sees, if that is most of them.

        ``valid_RQ``: which queries are not padding; None if all are valid.
        """
        if windowed:
            slots_RC, seen_RQC = self._narrowed(slots_RC, seen_RQC)
        seen = torch.from_numpy(seen_RQC).to(self._device).unsqueeze(1)
        bias = torch.zeros(seen.shape, dtype=self._dtype, device=self._device)
        blind = None
        if valid_RQ is not None:
            places = np.flatnonzero(valid_RQ & ~seen_RQC.any(axis=-1))
            blind = self.index(places) if len(places) else None
        return SeenSlots(
            self.index(slots_RC), bias.masked_fill_(~seen, hidden_bias(self._dtype)), blind
        )

    def index(self, array: I64) -> Tensor:
        """A flat index tensor of a host array."""
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).view(-1).to(self._device)

    def _narrowed(
        self, slots_RC: I64, seen_RQC: NDArray[np.bool_]
    ) -> tuple[I64, NDArray[np.bool_]]:
        seen_RC = seen_RQC.any(axis=1)
        width = max(1, int(seen_RC.sum(axis=1).max(initial=0)))
        if 2 * width > slots_RC.shape[1]:
            return slots_RC, seen_RQC
        columns_RC = np.argsort(~seen_RC, axis=1, kind="stable")[:, :width]
        kept_RC = np.take_along_axis(seen_RC, columns_RC, axis=1)
        slots_RC = np.take_along_axis(slots_RC, columns_RC, axis=1)
        return (
            np.where(kept_RC, slots_RC, self._null_slot),
            np.take_along_axis(seen_RQC, columns_RC[:, None, :], axis=2),
        )


def hidden_bias(dtype: torch.dtype) -> float:
    """The additive mask of hidden slots: finite, so that padding rows never become NaN."""
    return torch.finfo(dtype).min / 2
