"""The kernel's cache: K and V of every layer in tiles of 16 slots (``csrc/kv_cache.h``).

Owns the memory of device and host blocks, which are both main memory here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core.batch import I32
from quire.core.errors import EngineFault
from quire.engine.cpu.model_abi import SIGNATURES, CacheView, KeyTurns
from quire.engine.cpu.packed_matrix import huge_page_buffer
from quire.engine.cpu.raw_tiles import TILE_SLOTS, RawTiles, part_of
from quire.engine.cpu.team import Team
from quire.engine.kv_cache.pool import BlockShape, slots_of
from quire.engine.kv_cache.token_form import I64, U8, RawTokens, TokenForm
from quire.engine.layers.key_turn import KeyTurn


def padded_head_dim(head_dim: int) -> int:
    """The size of a head in the cache, rounded up to whole vectors."""
    return -(-head_dim // TILE_SLOTS) * TILE_SLOTS


class NativeKVPool:
    """Implements ``KVPool``. ``layers`` holds the K and V memory of each layer."""

    def __init__(
        self,
        team: Team,
        shape: BlockShape,
        head_dim: int,
        turn: KeyTurn,
        *,
        num_blocks: int,
        num_host_blocks: int,
        num_scratch: int,
        num_axes: int,
    ) -> None:
        """``shape.head_dim`` is padded; ``head_dim`` is the model's.

        Raises:
            OSError: the memory cannot be allocated.
        """
        self._library = team.library
        self._library.declare(SIGNATURES)
        self._team = team
        self._turn = turn
        self._rope_of_layer = np.array(turn.rope_of_layer, np.int64)
        self.shape = shape
        self.page_size = shape.page_size
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.num_slots = num_blocks * shape.page_size
        self.first_scratch = self.num_slots
        self.null_slot = self.num_slots + num_scratch
        self.kv_type = int(shape.dtype == torch.bfloat16)
        num_slots = -(-(self.null_slot + 1) // TILE_SLOTS) * TILE_SLOTS
        num_host_slots = num_host_blocks * shape.page_size
        self._head_dim = head_dim
        self.layers = self._allocate(num_slots, head_dim)
        self._host_layers = self._allocate(num_host_slots, head_dim)
        self._view, self._pointers = self._pointers_of(self.layers)
        self._host_view, self._host_pointers = self._pointers_of(self._host_layers)
        self.raw: RawTokens | None = RawTiles(
            team.library, self._view, self._host_view, shape.dtype
        )
        self.positions_AS = np.full((num_axes, num_slots), -1, np.int32)
        self.host_positions_AS = np.full((num_axes, num_host_slots), -1, np.int32)

    def copy_slots(self, source: I32, target: I32) -> None:
        """Copy K, V and position of flat slots; sources are read before targets are written."""
        self._copy(self._view, source.astype(np.int64), self._view, target.astype(np.int64))
        self.positions_AS[:, target] = self.positions_AS[:, source]

    def reposition(self, slots: I32, positions: I32) -> None:
        """Move flat slots, each named once, to other positions: K is rotated in place, in
        float32."""
        angles = self._turn.angles(self.positions_AS[0, slots], positions)
        num_planes = np.array([of_rope.shape[-1] for of_rope in angles], np.int64)
        pointers = (ctypes.c_void_p * len(angles))(*(of_rope.ctypes.data for of_rope in angles))
        flat = slots.astype(np.int64)
        turns = KeyTurns(
            ctypes.addressof(pointers), num_planes.ctypes.data, self._rope_of_layer.ctypes.data
        )
        status = self._library.native.quire_turn_keys(
            self._team.handle, self._view, flat.ctypes.data, len(flat), turns
        )
        self._team.check(status, f"the turn of {len(flat)} slots")
        self.positions_AS[:, slots] = positions

    def swap_out(self, blocks: I32, host_blocks: I32) -> None:
        """Copy whole device blocks to host blocks."""
        source, target = slots_of(blocks, self.page_size), slots_of(host_blocks, self.page_size)
        self._copy(self._view, source, self._host_view, target)
        self.host_positions_AS[:, target] = self.positions_AS[:, source]

    def swap_in(self, host_blocks: I32, blocks: I32) -> None:
        """Copy whole host blocks to device blocks."""
        source, target = slots_of(host_blocks, self.page_size), slots_of(blocks, self.page_size)
        self._copy(self._host_view, source, self._view, target)
        self.positions_AS[:, target] = self.host_positions_AS[:, source]

    @property
    def form(self) -> TokenForm:
        return TokenForm(
            self.shape.num_layers, self.shape.num_kv_heads, self._head_dim, self.shape.dtype
        )

    def read_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots and layers."""
        self._read(self._view, slots, layers, tokens)

    def read_host_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots of host blocks and layers."""
        self._read(self._host_view, slots, layers, tokens)

    def _read(self, view: CacheView, slots: I64, layers: range, tokens: U8) -> None:
        self._library.native.quire_read_tokens(
            part_of(view, layers), slots.ctypes.data, len(slots), tokens.ctypes.data
        )

    def write_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Write ``tokens``, in canonical form, to these slots and layers. ``place`` sets the
        positions."""
        self._library.native.quire_write_tokens(
            part_of(self._view, layers), slots.ctypes.data, len(slots), tokens.ctypes.data
        )

    def place(self, slots: I64, positions_AT: I32) -> None:
        """Set the positions of slots."""
        self.positions_AS[:, slots] = positions_AT

    def _copy(self, view: CacheView, source: I64, to: CacheView, target: I64) -> None:
        status = self._library.native.quire_copy_slots(
            view, source.ctypes.data, to, target.ctypes.data, len(source)
        )
        if status != 0:
            raise EngineFault(f"there is no memory left to copy {len(source)} slots")

    def _allocate(self, num_slots: int, head_dim: int) -> list[tuple[Tensor, Tensor]]:
        elements = self._library.native.quire_cache_elements(
            num_slots, self.shape.num_kv_heads, head_dim
        )
        num_bytes = int(elements) * self.shape.dtype.itemsize
        return [
            (huge_page_buffer(num_bytes), huge_page_buffer(num_bytes))
            for _ in range(self.shape.num_layers)
        ]

    def _pointers_of(
        self, layers: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[CacheView, tuple[Any, Any]]:
        """The view of these layers, and the arrays of pointers that it names."""
        pointers = ctypes.c_void_p * len(layers)
        keys = pointers(*(keys.data_ptr() for keys, _ in layers))
        values = pointers(*(values.data_ptr() for _, values in layers))
        view = CacheView(
            ctypes.addressof(keys),
            ctypes.addressof(values),
            len(layers),
            self.shape.num_kv_heads,
            self._head_dim,
            self.kv_type,
        )
        return view, (keys, values)
