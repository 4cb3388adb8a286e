"""Consecutive tokens in tiles as they lie in the kernel's cache (``csrc/kv_cache.h``), for engines
that both have this layout: ``[layer][K, V][tile]``.

Slots that form whole tiles are copied as fast as memory is. Which ones do is up to the caller.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.errors import EngineFault
from quire.engine.cpu.library import KernelLibrary
from quire.engine.cpu.model_abi import CacheView
from quire.engine.kv_cache.token_form import I64, U8, TokenPlaces

U64 = NDArray[np.uint64]

TILE_SLOTS = 16


class RawTiles:
    """Implements ``RawTokens`` for ``cache`` and ``host_cache``, the host blocks, whose memory the
    owner keeps."""

    def __init__(
        self, library: KernelLibrary, cache: CacheView, host_cache: CacheView, dtype: torch.dtype
    ) -> None:
        self._native = library.native
        self._cache = cache
        self._host_cache = host_cache
        elements = self._native.quire_cache_elements(TILE_SLOTS, cache.num_kv_heads, cache.head_dim)
        self._tile_bytes = int(elements) * dtype.itemsize
        heads, dtype_bytes = f"{cache.num_kv_heads} heads of {cache.head_dim}", dtype.itemsize
        self.layout = f"tiles of {TILE_SLOTS} slots: {heads} with {dtype_bytes} bytes each"

    def num_bytes(self, num_tokens: int, num_layers: int) -> int:
        return 2 * num_layers * self._half_bytes(num_tokens)

    def read(self, places: TokenPlaces, layers: range, raw: U8) -> None:
        """Fill ``raw`` with tiles of these tokens; lanes behind the last one become zero."""
        num_tokens = len(places.slots)
        if num_tokens % TILE_SLOTS:
            raw.reshape(2 * len(layers), -1)[:, -self._tile_bytes :] = 0
        pointers, tiles = self._tiles_in(raw, num_tokens, len(layers))
        for is_host, lanes, slots in places.by_tier():
            cache = self._host_cache if is_host else self._cache
            self._copy(part_of(cache, layers), slots, tiles, lanes)
        del pointers

    def write(self, slots: I64, layers: range, raw: U8) -> None:
        """Write ``raw`` to the tiles of these slots."""
        pointers, tiles = self._tiles_in(raw, len(slots), len(layers))
        self._copy(tiles, _first_slots(slots), part_of(self._cache, layers), slots)
        del pointers

    def _half_bytes(self, num_tokens: int) -> int:
        """The bytes of K, or of V, in one layer."""
        return -(-num_tokens // TILE_SLOTS) * self._tile_bytes

    def _tiles_in(self, raw: U8, num_tokens: int, num_layers: int) -> tuple[U64, CacheView]:
        """``raw`` as a cache of its own, and the pointers that this view names."""
        places = self._half_bytes(num_tokens) * np.arange(2 * num_layers, dtype=np.uint64)
        pointers = (raw.ctypes.data + places).reshape(num_layers, 2).T.copy()
        keys, values = pointers
        cache = self._cache
        return pointers, CacheView(
            keys.ctypes.data,
            values.ctypes.data,
            num_layers,
            cache.num_kv_heads,
            cache.head_dim,
            cache.type,
        )

    def _copy(self, source: CacheView, slots: I64, target: CacheView, places: I64) -> None:
        status = self._native.quire_copy_slots(
            source, slots.ctypes.data, target, places.ctypes.data, len(slots)
        )
        if status != 0:
            raise EngineFault(f"there is no memory left to copy {len(slots)} slots")


def part_of(cache: CacheView, layers: range) -> CacheView:
    """The view of some layers of a cache."""
    size = ctypes.sizeof(ctypes.c_void_p)
    return CacheView(
        cache.keys + layers.start * size,
        cache.values + layers.start * size,
        len(layers),
        cache.num_kv_heads,
        cache.head_dim,
        cache.type,
    )


def _first_slots(slots: I64) -> I64:
    return np.arange(len(slots), dtype=np.int64)
