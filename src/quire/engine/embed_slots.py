"""Device memory for hidden vectors (embeds) and for sampled tokens (token slots)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32


class EmbedSlots:
    """``[num_embeds, hidden_size]``: inputs and outputs of ``forward``."""

    def __init__(
        self, num_embeds: int, hidden_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.num_embeds = num_embeds
        self._device = device
        self.vectors_EH = torch.zeros(num_embeds, hidden_size, device=device, dtype=dtype)
        self._host_EH: NDArray[np.float32] | None = None
        if device.type == "cpu" and dtype == torch.float32:
            self._host_EH = self.vectors_EH.numpy()  # the same memory, faster to access

    def contains(self, embeds: I32) -> NDArray[np.bool_]:
        return (embeds >= 0) & (embeds < self.num_embeds)

    def read(self, embeds: I32) -> Tensor:
        """Vectors ``[E, H]``."""
        if self._host_EH is not None:
            return torch.from_numpy(self._host_EH[embeds])
        return self.vectors_EH.index_select(0, self._index(embeds))

    def write(self, embeds: I32, vectors_EH: Tensor) -> None:
        if self._host_EH is not None:
            self._host_EH[embeds] = vectors_EH.numpy()
        else:
            self.vectors_EH.index_copy_(0, self._index(embeds), vectors_EH)

    def _index(self, embeds: I32) -> Tensor:
        return torch.as_tensor(embeds.astype(np.int64), device=self._device)


class TokenSlots:
    """Sampled tokens that a later command may name before the host has seen them.

    Kept in host memory: the reference step copies every sampled token to the host anyway.
    """

    EMPTY = -1

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._tokens = np.full(num_slots, self.EMPTY, np.int64)

    def resolve(self, tokens: I32) -> NDArray[np.int64]:
        """Token ids, with ``~slot`` replaced by the slot's token (``EMPTY`` if it has none)."""
        values = tokens.astype(np.int64)
        named = values < 0
        if named.any():
            slots = ~values[named]
            known = slots < self.num_slots
            values[named] = np.where(known, self._tokens[np.where(known, slots, 0)], self.EMPTY)
        return values

    def write(self, slots: I32, tokens: NDArray[np.integer]) -> None:
        self._tokens[slots] = tokens
