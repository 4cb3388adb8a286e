"""The interface of the engine's cache: the blocks of one layer group, on the device and on the
host.

Flat slots: block ``b`` holds slots ``b * page_size`` to ``(b + 1) * page_size - 1``. After the
blocks follow scratch slots, which hold K and V of tokens that are not kept for the duration of a
step, and one null slot that is never written and pads gathers (so that padding can never be NaN).
The memory layout of K and V is up to each backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.batch import I32
from quire.core.config import DEFAULT_CACHE_BYTES, EngineConfig
from quire.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The memory of one token in each of a group's ``num_layers`` layers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        """Bytes of K and V of a block in every layer of the group."""
        per_slot = 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize
        return self.num_layers * self.page_size * per_slot

    def num_blocks(self, config: EngineConfig) -> int:
        """The number of device blocks that the configuration asks for.

        Raises:
            ConfigError: less than one block.
        """
        asked = config.kv_cache_bytes
        num_bytes = DEFAULT_CACHE_BYTES if asked is None else asked
        num_blocks = config.num_blocks or num_bytes // self.bytes_per_block
        if num_blocks < 1:
            raise ConfigError(
                f"kv_cache_bytes is {num_bytes}, but one page of {self.page_size} tokens takes "
                f"{self.bytes_per_block}: raise it"
            )
        return num_blocks

    def num_host_blocks(self, config: EngineConfig) -> int:
        return config.host_cache_bytes // self.bytes_per_block

    def too_large(self, num_blocks: int, num_host_blocks: int, cause: Exception) -> ConfigError:
        """The error for an allocation of this many blocks that the system refused."""
        return ConfigError(
            f"{num_blocks} device and {num_host_blocks} host blocks of {self.bytes_per_block} "
            f"bytes cannot be allocated ({cause}): lower kv_cache_bytes or host_cache_bytes"
        )


def slots_of(blocks: I32, page_size: int) -> NDArray[np.int64]:
    """The flat slots of whole blocks, in order."""
    starts = np.asarray(blocks, np.int64)[:, None] * page_size
    return (starts + np.arange(page_size)).reshape(-1)


class KVPool(Protocol):
    """Device and host blocks of one layer group, with the position of every written slot.

    ``positions_AS`` (host memory, ``-1`` = never written) has one row per position axis.
    """

    shape: BlockShape
    page_size: int
    num_blocks: int
    num_host_blocks: int
    num_slots: int
    first_scratch: int
    null_slot: int
    positions_AS: I32

    def copy_slots(self, source: I32, target: I32) -> None:
        """Copy K, V and position of flat slots; sources are read before targets are written."""
        ...

    def reposition(self, slots: I32, positions: I32) -> None:
        """Move flat slots, each named once, to other positions: K is rotated in place."""
        ...

    def swap_out(self, blocks: I32, host_blocks: I32) -> None:
        """Copy whole device blocks to host blocks."""
        ...

    def swap_in(self, host_blocks: I32, blocks: I32) -> None:
        """Copy whole host blocks to device blocks."""
        ...
