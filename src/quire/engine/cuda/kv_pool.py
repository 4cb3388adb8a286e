"""The CUDA backend's cache: the flat tensors of ``TorchKVPool``, which kernels see as pages.

``[slots, K, D]`` is FlashInfer's layout ``NHD`` ``[pages, page_size, K, D]`` with the first two
axes merged, at any page size that divides the slots, including one. Slot positions are also kept on
the device, where kernels use them to decide what a token sees.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.kv_cache.pool import BlockShape, slots_of
from quire.engine.kv_cache.token_form import I64
from quire.engine.kv_cache.torch_pool import LayerCache, TorchKVPool
from quire.engine.layers.key_turn import KeyTurn


class CudaKVPool(TorchKVPool):
    """``KVPool`` with ``slot_positions_S``, int32 on the device.

    The attention plan of a forward pass sets the positions of the slots that the pass writes;
    copies, swaps and repositioning change them here.
    """

    def __init__(
        self,
        shape: BlockShape,
        *,
        num_blocks: int,
        num_host_blocks: int,
        num_scratch: int,
        num_axes: int,
        device: torch.device,
        turn: KeyTurn,
    ) -> None:
        behind = num_scratch + 1
        super().__init__(
            shape,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_scratch=num_scratch + -behind % shape.page_size,
            num_axes=num_axes,
            device=device,
            turn=turn,
        )
        self.slot_positions_S = torch.full(
            (self.null_slot + 1,), -1, dtype=torch.int32, device=device
        )

    @property
    def idle_slot(self) -> int:
        """A scratch slot for padding rows of a batch; it is never read."""
        return self.first_scratch

    def copy_slots(self, source: I32, target: I32) -> None:
        """Copy K, V and position of flat slots; sources are read before targets are written."""
        super().copy_slots(source, target)
        self._publish(np.asarray(target, np.int64))

    def reposition(self, slots: I32, positions: I32) -> None:
        """Move flat slots, each named once, to other positions: K is rotated in place, in
        float32."""
        super().reposition(slots, positions)
        self._publish(np.asarray(slots, np.int64))

    def swap_in(self, host_blocks: I32, blocks: I32) -> None:
        """Copy whole host blocks to device blocks."""
        super().swap_in(host_blocks, blocks)
        self._publish(slots_of(blocks, self.page_size))

    def place(self, slots: I64, positions_AT: I32) -> None:
        """Set the positions of slots."""
        super().place(slots, positions_AT)
        self._publish(slots)

    def _publish(self, slots: NDArray[np.int64]) -> None:
        """Copy the positions of these slots to the device."""
        positions = torch.from_numpy(self.positions_AS[0, slots])
        device = self.slot_positions_S.device
        self.slot_positions_S[torch.from_numpy(slots).to(device)] = positions.to(device)


def paged(cache: LayerCache, page_size: int) -> tuple[Tensor, Tensor]:
    """K and V of a layer as pages ``[pages, page_size, K, D]``, without copying."""
    shape = (-1, page_size, *cache.keys_SKD.shape[1:])
    return cache.keys_SKD.view(shape), cache.values_SKD.view(shape)
