"""The canonical form of cached tokens, in which engines exchange K and V.

``[layer][K, V][token][KV head][head size]`` in the cache's number type, without padding: it depends
on ``EngineInfo.content`` alone. Pools translate their own layout to it and back, without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


class RawTokens(Protocol):
    """How a pool holds consecutive tokens, for exchange with pools of the same ``layout``: it
    copies where the canonical form translates."""

    @property
    def layout(self) -> str:
        """Equal in two pools if and only if they read one another's bytes."""
        ...

    def num_bytes(self, num_tokens: int, num_layers: int) -> int: ...

    def read(self, slots: I64, layers: range, raw: U8) -> None:
        """Fill ``raw``; places without a token become zero."""
        ...

    def write(self, slots: I64, layers: range, raw: U8) -> None:
        """Write ``raw`` to these slots and layers. ``TokenPool.place`` sets the positions."""
        ...


@runtime_checkable
class TokenPool(Protocol):
    """A pool whose tokens can be exchanged, one after another or by several threads at once as long
    as they name different slots. Slots are flat, ``layers`` a range with step 1.

    ``raw``: None where the canonical form is as fast as any."""

    num_slots: int
    positions_AS: I32
    raw: RawTokens | None

    @property
    def form(self) -> TokenForm: ...

    def read_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Fill ``tokens`` with the canonical form of these slots and layers."""
        ...

    def write_tokens(self, slots: I64, layers: range, tokens: U8) -> None:
        """Write ``tokens``, in canonical form, to these slots and layers. ``place`` sets the
        positions."""
        ...

    def place(self, slots: I64, positions_AT: I32) -> None:
        """Set the positions of slots."""
        ...
