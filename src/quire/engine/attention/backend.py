"""The interface of attention backends.

A backend plans once for a step (and layer group) and then attends in every layer. The plain PyTorch
backend in ``quire.engine.attention.reference`` defines the result; others must equal it.

Shapes: R rows, T new tokens, P pages, N heads, K KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32
from quire.engine.kv_cache.page_tables import PageLists, TablePages
from quire.engine.kv_cache.torch_pool import LayerCache


@dataclass(frozen=True, slots=True, eq=False)
class AttentionAttributes:
    """Attention parameters of a layer; the same for every step.

    ``scale`` multiplies the products of queries and keys. ``window``: a token at position p sees
    only positions above p - window (None: all). ``softcap`` c turns a scaled product s into c *
    tanh(s / c) before masking. ``sinks_N``: one logit per head that takes part in the softmax and
    has no value (gpt-oss); a token that sees nothing still gets zeros.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks_N: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The rows of one step in one layer group.

    ``row_starts`` [R+1] · ``positions`` [T] of the new tokens (first axis) · ``slots`` [T] to which
    their K and V are written before any row attends · ``pages`` of the rows · ``slot_positions``
    positions of all slots of the pool, new tokens included · ``masks`` bool ``[num_new, num_pages *
    page_size + num_new]`` by row · ``adapters`` [R] that each row's projections are computed with,
    -1 for none; None when no row has one. Attention ignores them.

    A new token at position p sees the visible slots of its row's pages at positions < p, the new
    tokens of its row at positions < p, and itself; slots that the row writes are seen once, as new
    tokens. An explicit mask replaces the rule about positions, but never shows a slot whose bit is
    not set; a token that sees nothing attends to nothing (zeros).
    """

    row_starts: NDArray[np.int64]
    positions: I32
    slots: NDArray[np.int64]
    pages: PageLists | TablePages
    slot_positions: I32
    page_size: int
    masks: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)
    adapters: I32 | None = None

    @property
    def num_rows(self) -> int:
        return len(self.row_starts) - 1


class AttentionPlan(Protocol):
    """The attention of a step, usable in every layer. Valid until the next plan is made."""

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        """Attention output ``[T, N * D]`` of every new token; K and V are in ``cache``."""
        ...


class DecodePlan(AttentionPlan, Protocol):
    """Rows of one new token each that advance together, step after step."""

    def advance(self, slots_R: NDArray[np.int64], positions_R: I32) -> None:
        """Begin a step: set the slot and position of each row's new token."""
        ...

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Keep only these rows, in this order."""
        ...


class AttentionBackend(Protocol):
    """One implementation of attention on one device. Owned by the engine, for its life."""

    @property
    def name(self) -> str: ...

    def plan(self, rows: AttentionRows) -> AttentionPlan:
        """Plan one step of ragged rows."""
        ...

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> DecodePlan:
        """Plan up to ``num_steps`` steps. ``rows`` has one token per row, that of the first step;
        call ``advance`` before each step, including the first."""
        ...
