"""The canonical form of cached tokens, in which engines exchange K and V.

``[layer][K, V][token][KV head][head size]`` in the cache's number type, without padding: it depends
on ``EngineInfo.content`` alone. Pools translate their own layout to it and back, without rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TokenForm:
    """``head_dim``: the model's own, which a cache may pad."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_layer(self) -> int:
        """Bytes of K and V of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def view(self, tokens: U8, num_layers: int) -> Tensor:
        """The bytes of some tokens in ``num_layers`` layers as numbers ``[L, 2, T, K, D]``, without
        copying. Writing to it needs writable bytes."""
        numbers_N = torch.from_numpy(tokens).view(self.dtype)
        return numbers_N.view(num_layers, 2, -1, self.num_kv_heads, self.head_dim)


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Where T tokens lie: flat ``slots`` [T] of the device, or of the host blocks where
    ``on_host`` [T]."""

    slots: I64
    on_host: NDArray[np.bool_]

    @classmethod
    def on_device(cls, slots: I64) -> Self:
        return cls(slots, np.zeros(len(slots), np.bool_))

    @property
    def device_slots(self) -> I64:
        return self.slots[~self.on_host]

    def part(self, start: int, stop: int) -> TokenPlaces:
        """The places of tokens ``start`` (included) to ``stop`` (excluded)."""
        return TokenPlaces(self.slots[start:stop], self.on_host[start:stop])

    def by_tier(self) -> Iterator[tuple[bool, I64, I64]]:
        """Yield for each tier that has any of them: whether it is the host, which tokens it has
        (ascending indices), and their slots."""
        for is_host in (False, True):
            chosen = np.flatnonzero(self.on_host == is_host)
            if len(chosen):
                yield is_host, chosen, self.slots[chosen]


class RawTokens(Protocol):
    """How a pool holds consecutive tokens, for exchange with pools of the same ``layout``: it
    copies where the canonical form translates."""

    @property
    def layout(self) -> str:
        """Equal in two pools if and only if they read one another's bytes."""
        ...

    def num_bytes(self, num_tokens: int, num_layers: int) -> int: ...

    def read(self, places: TokenPlaces, layers: range, raw: U8) -> None:
        """Fill ``raw``, which is zero where there is no token."""
        ...

    def write(self, slots: I64, layers: range, raw: U8) -> None:
        """Write ``raw`` to these slots and layers. ``TokenPool.place`` sets the positions."""
        ...


@runtime_checkable
class TokenPool(Protocol):
    """A pool whose tokens can be exchanged, one after another or by several threads at once as long
    as they name different slots. Slots are flat, ``layers`` a range with step 1. Host blocks can be
    read by other threads than the engine's.

    ``raw``: None where the canonical form is as fast as any."""

    page_size: int
    num_slots: int
    positions_AS: I32
    host_positions_AS: I32
    raw: RawTokens | None

    @property
    def form(self) -> TokenForm: ...

    def read_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots and layers."""
        ...

    def read_host_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots of host blocks and layers."""
        ...

    def write_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Write ``tokens``, in canonical form, to these slots and layers. ``place`` sets the
        positions."""
        ...

    def place(self, slots: I64, positions_AT: I32) -> None:
        """Set the positions of slots."""
        ...


def read_places(pool: TokenPool, places: TokenPlaces, layers: range, tokens: U8) -> None:
    """Fill ``tokens`` with the canonical form of the tokens at ``places``, on either tier."""
    for is_host, chosen, slots in places.by_tier():
        read = pool.read_host_tokens if is_host else pool.read_tokens
        if len(chosen) == len(places.slots):
            read(slots, layers, tokens)
            return
        part = np.empty(len(slots) * len(layers) * pool.form.bytes_per_layer, np.uint8)
        read(slots, layers, part)
        whole_L2TKD = pool.form.view(tokens, len(layers))
        whole_L2TKD[:, :, torch.from_numpy(chosen)] = pool.form.view(part, len(layers))


def positions_at(pool: TokenPool, places: TokenPlaces) -> I32:
    """The positions ``[axes, tokens]`` of the tokens at ``places``."""
    positions_AT = np.empty((len(pool.positions_AS), len(places.slots)), np.int32)
    for is_host, chosen, slots in places.by_tier():
        held_AS = pool.host_positions_AS if is_host else pool.positions_AS
        positions_AT[:, chosen] = held_AS[:, slots]
    return positions_AT
