"""Whole blocks as records of bytes, in which they are kept on a disk.

Owns the layout of a record: K and V of its slots in canonical form (``token_form``), then their
positions. Does not know files.
"""

from __future__ import annotations

import numpy as np
import torch

from quire.core.batch import I32
from quire.engine.kv_cache.pool import slots_of
from quire.engine.kv_cache.token_form import U8, TokenPool


class BlockRecords:
    """Records of the blocks of ``pool``. ``num_bytes``: the size of one record."""

    def __init__(self, pool: TokenPool) -> None:
        form = pool.form
        self._pool = pool
        self._layers = range(form.num_layers)
        self._num_axes = len(pool.positions_AS)
        self._kv_bytes = form.num_layers * form.bytes_per_layer * pool.page_size
        self.num_bytes = self._kv_bytes + self._num_axes * pool.page_size * 4

    def read(self, blocks: I32, *, on_host: bool) -> U8:
        """The records ``[block, byte]`` of these blocks, of the device or the host."""
        pool, slots = self._pool, slots_of(blocks, self._pool.page_size)
        tokens = np.empty(len(blocks) * self._kv_bytes, np.uint8)
        read = pool.read_host_tokens if on_host else pool.read_tokens
        with torch.inference_mode():  # which holds for one thread alone
            read(slots, self._layers, tokens)
        records = np.empty((len(blocks), self.num_bytes), np.uint8)
        self._by_block(records)[:] = self._by_layer(tokens, len(blocks)).swapaxes(0, 1)
        positions_AS = pool.host_positions_AS if on_host else pool.positions_AS
        positions_ABP = positions_AS[:, slots].reshape(self._num_axes, len(blocks), -1)
        positions = np.ascontiguousarray(positions_ABP.swapaxes(0, 1)).reshape(len(blocks), -1)
        records[:, self._kv_bytes :] = positions.view(np.uint8)
        return records

    def write(self, records: U8, blocks: I32) -> None:
        """Fill these blocks of the device with their records."""
        pool, slots = self._pool, slots_of(blocks, self._pool.page_size)
        tokens = np.empty(len(blocks) * self._kv_bytes, np.uint8)
        self._by_layer(tokens, len(blocks))[:] = self._by_block(records).swapaxes(0, 1)
        positions = np.ascontiguousarray(records[:, self._kv_bytes :]).view(np.int32)
        positions_ABP = positions.reshape(len(blocks), self._num_axes, -1).swapaxes(0, 1)
        with torch.inference_mode():
            pool.write_tokens(slots, self._layers, tokens)
            pool.place(slots, positions_ABP.reshape(self._num_axes, -1))

    def _by_block(self, records: U8) -> U8:
        """K and V of records as ``[block, layer and K or V, byte]``, without copying."""
        return records[:, : self._kv_bytes].reshape(len(records), 2 * len(self._layers), -1)

    def _by_layer(self, tokens: U8, num_blocks: int) -> U8:
        """Tokens of whole blocks as ``[layer and K or V, block, byte]``."""
        return tokens.reshape(2 * len(self._layers), num_blocks, -1)
