"""The CUDA backend's cache: the flat tensors of ``TorchKVPool``, seen by kernels as pages.

``[slots, K, D]`` is FlashInfer's layout ``NHD`` ``[pages, page_size, K, D]`` without its first two
axes apart, at any page size that divides the slots, one included. Positions of slots are kept on
the device too, where kernels decide by them what a token sees.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.kv_cache.pool import BlockShape, slots_of
from quire.engine.kv_cache.torch_pool import LayerCache, TorchKVPool


class CudaKVPool(TorchKVPool):
    """``KVPool`` with ``slot_positions_S``, int32 on the device.

    Positions of slots that a forward pass writes are set there by the attention plan of the pass;
    copies and swaps take them along here.
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
    ) -> None:
        behind = num_scratch + 1
        super().__init__(
            shape,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            num_scratch=num_scratch + -behind % shape.page_size,
            num_axes=num_axes,
            device=device,
        )
        self.slot_positions_S = torch.full(
            (self.null_slot + 1,), -1, dtype=torch.int32, device=device
        )

    @property
    def idle_slot(self) -> int:
        """A scratch slot for rows that only fill up a batch; nobody reads it."""
        return self.first_scratch

    def copy_slots(self, source: I32, target: I32) -> None:
        """Copy K, V and position of flat slots; sources are read before targets are written."""
        super().copy_slots(source, target)
        self._publish(np.asarray(target, np.int64))

    def swap_in(self, host_blocks: I32, blocks: I32) -> None:
        """Copy whole host blocks to device blocks."""
        super().swap_in(host_blocks, blocks)
        self._publish(slots_of(blocks, self.page_size))

    def _publish(self, slots: NDArray[np.int64]) -> None:
        """Send the positions of these slots to the device."""
        positions = torch.from_numpy(self.positions_AS[0, slots])
        device = self.slot_positions_S.device
        self.slot_positions_S[torch.from_numpy(slots).to(device)] = positions.to(device)


def paged(cache: LayerCache, page_size: int) -> tuple[Tensor, Tensor]:
    """K and V of a layer as pages ``[pages, page_size, K, D]``, without copying."""
    shape = (-1, page_size, *cache.keys_SKD.shape[1:])
    return cache.keys_SKD.view(shape), cache.values_SKD.view(shape)
