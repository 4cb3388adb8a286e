"""The PyTorch backend's cache: K and V of one layer group as plain tensors, device and host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.core.config import EngineConfig
from quire.engine.kv_cache.pool import BlockShape, slots_of
from quire.engine.kv_cache.token_form import I64, U8, RawTokens, TokenForm
from quire.engine.layers.key_turn import KeyTurn
from quire.engine.layers.rotary import rotate


class LayerCache:
    """K and V of one layer: ``[num_slots, num_kv_heads, head_dim]`` each."""

    __slots__ = ("keys_SKD", "values_SKD")

    def __init__(self, keys_SKD: Tensor, values_SKD: Tensor) -> None:
        self.keys_SKD = keys_SKD
        self.values_SKD = values_SKD

    def write(self, slots_T: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> None:
        self.keys_SKD.index_copy_(0, slots_T, k_TKD)
        self.values_SKD.index_copy_(0, slots_T, v_TKD)


class TorchKVPool:
    """``KVPool`` in tensors ``[num_slots, num_kv_heads, head_dim]``, one pair a layer."""

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
        self.shape = shape
        self._turn = turn
        self.page_size = shape.page_size
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.num_slots = num_blocks * shape.page_size
        self.first_scratch = self.num_slots
        self.null_slot = self.num_slots + num_scratch
        self.layers = [
            LayerCache(*self._tensors(self.null_slot + 1, device)) for _ in range(shape.num_layers)
        ]
        num_host_slots = num_host_blocks * shape.page_size
        self._host_layers = [
            LayerCache(*self._tensors(num_host_slots, torch.device("cpu")))
            for _ in range(shape.num_layers)
        ]
        self.positions_AS = np.full((num_axes, self.null_slot + 1), -1, np.int32)
        self.host_positions_AS = np.full((num_axes, num_host_slots), -1, np.int32)
        self.raw: RawTokens | None = None
        self._device = device

    @classmethod
    def allocate(
        cls, shape: BlockShape, config: EngineConfig, device: torch.device, turn: KeyTurn
    ) -> Self:
        """A pool for text, with the sizes of ``config``.

        Raises:
            ConfigError: less than one block, or more than there is memory for.
        """
        num_blocks, num_host_blocks = shape.num_blocks(config), shape.num_host_blocks(config)
        try:
            return cls(
                shape,
                num_blocks=num_blocks,
                num_host_blocks=num_host_blocks,
                num_scratch=config.max_batch_tokens,
                num_axes=1,
                device=device,
                turn=turn,
            )
        except (RuntimeError, MemoryError) as exc:
            raise shape.too_large(num_blocks, num_host_blocks, exc) from exc

    def copy_slots(self, source: I32, target: I32) -> None:
        """Copy K, V and position of flat slots; sources are read before targets are written."""
        source_S, target_S = self._index(source), self._index(target)
        for layer in self.layers:
            layer.write(
                target_S,
                layer.keys_SKD.index_select(0, source_S),
                layer.values_SKD.index_select(0, source_S),
            )
        self.positions_AS[:, target] = self.positions_AS[:, source]

    def reposition(self, slots: I32, positions: I32) -> None:
        """Move flat slots, each named once, to other positions: K is rotated in place, in
        float32."""
        rotations = self._turn.rotations(self.positions_AS[0, slots], positions, self._device)
        slots_S = self._index(slots)
        for layer, rope in zip(self.layers, self._turn.rope_of_layer, strict=True):
            keys_SKD = layer.keys_SKD.index_select(0, slots_S).float()
            turned_SKD = rotate(keys_SKD, rotations[rope]).to(layer.keys_SKD.dtype)
            layer.keys_SKD.index_copy_(0, slots_S, turned_SKD)
        self.positions_AS[:, slots] = positions

    def swap_out(self, blocks: I32, host_blocks: I32) -> None:
        """Copy whole device blocks to host blocks."""
        source, target = slots_of(blocks, self.page_size), slots_of(host_blocks, self.page_size)
        source_S, target_S = self._index(source), torch.from_numpy(target)
        for layer, host in zip(self.layers, self._host_layers, strict=True):
            host.write(
                target_S,
                layer.keys_SKD.index_select(0, source_S).cpu(),
                layer.values_SKD.index_select(0, source_S).cpu(),
            )
        self.host_positions_AS[:, target] = self.positions_AS[:, source]

    def swap_in(self, host_blocks: I32, blocks: I32) -> None:
        """Copy whole host blocks to device blocks."""
        source, target = slots_of(host_blocks, self.page_size), slots_of(blocks, self.page_size)
        source_S, target_S = torch.from_numpy(source), self._index(target)
        for layer, host in zip(self.layers, self._host_layers, strict=True):
            layer.write(
                target_S,
                host.keys_SKD.index_select(0, source_S).to(self._device),
                host.values_SKD.index_select(0, source_S).to(self._device),
            )
        self.positions_AS[:, target] = self.host_positions_AS[:, source]

    @property
    def form(self) -> TokenForm:
        shape = self.shape
        return TokenForm(shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.dtype)

    def read_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots and layers."""
        self._read(self.layers, self._index(slots), layers, tokens)

    def read_host_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots of host blocks and layers."""
        self._read(self._host_layers, torch.from_numpy(slots), layers, tokens)

    def _read(
        self, caches: Sequence[LayerCache], slots_T: Tensor, layers: range, tokens: U8
    ) -> None:
        tokens_L2TKD = self.form.view(tokens, len(layers))
        for layer, (keys_TKD, values_TKD) in zip(layers, tokens_L2TKD, strict=True):
            cache = caches[layer]
            keys_TKD.copy_(cache.keys_SKD.index_select(0, slots_T))
            values_TKD.copy_(cache.values_SKD.index_select(0, slots_T))

    def write_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Write ``tokens``, in canonical form, to these slots and layers. ``place`` sets the
        positions."""
        slots_T = self._index(slots)
        tokens_L2TKD = self.form.view(tokens, len(layers)).to(self._device)
        for layer, (keys_TKD, values_TKD) in zip(layers, tokens_L2TKD, strict=True):
            self.layers[layer].write(slots_T, keys_TKD, values_TKD)

    def place(self, slots: I64, positions_AT: I32) -> None:
        """Set the positions of slots."""
        self.positions_AS[:, slots] = positions_AT

    def _index(self, slots: Sequence[int] | NDArray[np.signedinteger]) -> Tensor:
        return torch.as_tensor(np.asarray(slots, np.int64), device=self._device)

    def _tensors(self, num_slots: int, device: torch.device) -> tuple[Tensor, Tensor]:
        size = (num_slots, self.shape.num_kv_heads, self.shape.head_dim)
        return (
            torch.zeros(size, dtype=self.shape.dtype, device=device),
            torch.zeros(size, dtype=self.shape.dtype, device=device),
        )
