"""The rows of a step whose attention mass is wanted, and how it is computed.

The layers' attention is unchanged: the step's runner computes the probabilities of these rows a
second time, from the same queries and the same cache, so that no result changes by a bit.
``add_mass`` is the definition in PyTorch.

Shapes: T new tokens of a row, C slots that one of them may see, N heads, K KV heads, G heads per KV
head, D head size, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import F32, I32
from quire.engine.attention.backend import AttentionAttributes, AttentionPlan, AttentionRows
from quire.engine.attention.visible_slots import visible_slots
from quire.engine.kv_cache.page_tables import TablePages
from quire.engine.kv_cache.torch_pool import LayerCache

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MAX_PRODUCTS = 1 << 24
"""Scores held at a time; those of a whole long prompt would take gigabytes."""


@dataclass(frozen=True, slots=True)
class MassRow:
    """One row of a step, whose tokens are ``first_token`` to ``first_token + T - 1``.

    ``slots_C`` in the order of the page table, then those of the new tokens · ``positions_C`` and
    ``positions_T`` · ``allowed_TC`` which token sees which slot, without windows · ``columns_C``
    the slots' indices among ``num_columns``: every slot of the table, then the new tokens.
    """

    first_token: int
    slots_C: I64
    positions_C: I32
    positions_T: I32
    allowed_TC: Bools
    columns_C: I64
    num_columns: int

    def seen(self, window: int | None, start: int, stop: int) -> Bools:
        """The slots that tokens ``start:stop`` see in layers with this window, as bool [T, C]."""
        allowed_TC = self.allowed_TC[start:stop]
        if window is None:
            return allowed_TC
        first_T = self.positions_T[start:stop].astype(np.int64) - window + 1
        seen: Bools = allowed_TC & (self.positions_C >= first_T[:, None])
        return seen


class AttentionMass:
    """The scored rows of a step and the mass of their slots, which the step's runner fills in.

    ``mass_LC`` concatenates the slots of all rows; row i owns ``starts[i]:starts[i + 1]``.
    """

    def __init__(self, rows: Sequence[MassRow], num_layers: int) -> None:
        self.rows = rows
        self.starts = np.cumsum([0, *(len(row.slots_C) for row in rows)])
        self.mass_LC = np.zeros((num_layers, int(self.starts[-1])), np.float32)

    def of_row(self, index: int) -> F32:
        """Mass ``[L, num_columns]`` of one row's columns; 0 where nothing was seen."""
        row = self.rows[index]
        mass = np.zeros((len(self.mass_LC), row.num_columns), np.float32)
        mass[:, row.columns_C] = self.mass_LC[:, self.starts[index] : self.starts[index + 1]]
        return mass


def scored_rows(rows: AttentionRows, members: Sequence[int]) -> list[MassRow]:
    """The slots that the tokens of ``members`` may see. Writes the positions of the step's new
    tokens to the pool first, as running the step does."""
    rows.slot_positions[rows.slots] = rows.positions
    return [_scored_row(rows, member) for member in members]


def _scored_row(rows: AttentionRows, member: int) -> MassRow:
    assert isinstance(rows.pages, TablePages)
    first, last = int(rows.row_starts[member]), int(rows.row_starts[member + 1])
    num_new = last - first
    mask = rows.masks.get(member)
    pages = TablePages(rows.pages.tables, rows.pages.rows_R[member : member + 1])
    one = replace(
        rows,
        row_starts=np.array([0, num_new]),
        positions=rows.positions[first:last],
        slots=rows.slots[first:last],
        pages=pages,
        masks={} if mask is None else {0: mask},
        adapters=None,
    )
    context = visible_slots(one)
    num_table_slots = int(pages.starts[1]) * rows.page_size
    new = num_table_slots + np.arange(num_new)
    columns_C = np.concatenate((context.columns, new))
    positions_C: I64 = np.concatenate((context.positions, one.positions.astype(np.int64)))
    if mask is None:
        allowed_TC = positions_C < one.positions[:, None]
        allowed_TC[:, len(context.slots) :] |= np.eye(num_new, dtype=np.bool_)
    else:
        allowed_TC = np.ascontiguousarray(mask[:, columns_C])
    return MassRow(
        first_token=first,
        slots_C=np.concatenate((context.slots, one.slots)),
        positions_C=positions_C.astype(np.int32),
        positions_T=np.ascontiguousarray(one.positions, np.int32),
        allowed_TC=allowed_TC,
        columns_C=columns_C,
        num_columns=num_table_slots + num_new,
    )


class ScoringPlan:
    """``AttentionPlan`` that delegates attention to ``plan`` and adds up the mass.

    Must be called for each layer once, in order.
    """

    def __init__(self, plan: AttentionPlan, mass: AttentionMass) -> None:
        self._plan = plan
        self._mass = mass
        self._layer = 0

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        mass_C = self._mass.mass_LC[self._layer]
        self._layer += 1
        for row, start in zip(self._mass.rows, self._mass.starts, strict=False):
            add_mass(mass_C[start : start + len(row.slots_C)], row, q_TND, cache, attributes)
        return self._plan.attend(q_TND, cache, attributes)


def add_mass(
    mass_C: F32,
    row: MassRow,
    q_TND: Tensor,
    cache: LayerCache,
    attributes: AttentionAttributes,
) -> None:
    """Add one layer's probabilities of ``row``'s slots to ``mass_C``, in float32: summed over the
    row's tokens, averaged over the heads. ``q_TND`` are the queries of the whole step."""
    num_heads, num_slots = q_TND.shape[1], len(row.slots_C)
    slots = torch.from_numpy(row.slots_C).to(q_TND.device)
    keys_KDC = cache.keys_SKD.index_select(0, slots).float().permute(1, 2, 0)
    total_C = torch.zeros(num_slots, device=q_TND.device)
    step = max(1, _MAX_PRODUCTS // (num_heads * num_slots))
    for start in range(0, len(row.positions_T), step):
        stop = min(start + step, len(row.positions_T))
        q_KMD = _grouped(q_TND[row.first_token + start : row.first_token + stop], len(keys_KDC))
        scores = (q_KMD @ keys_KDC).view(num_heads, stop - start, num_slots)
        seen = torch.from_numpy(row.seen(attributes.window, start, stop)).to(q_TND.device)
        total_C += _probabilities(scores, seen, attributes).sum(dim=(0, 1))
    mass_C += (total_C / num_heads).cpu().numpy()


def _grouped(q_TND: Tensor, num_kv_heads: int) -> Tensor:
    """``[K, G * T, D]``: the heads that share a KV head are adjacent."""
    by_head = q_TND.float().transpose(0, 1)
    return by_head.reshape(num_kv_heads, -1, q_TND.shape[2])


def _probabilities(scores_NTC: Tensor, seen_TC: Tensor, attributes: AttentionAttributes) -> Tensor:
    scores_NTC = scores_NTC * attributes.scale
    if attributes.softcap is not None:
        scores_NTC = (scores_NTC / attributes.softcap).tanh() * attributes.softcap
    scores_NTC = scores_NTC.masked_fill(~seen_TC, -torch.inf)
    if attributes.sinks_N is not None:
        sinks = attributes.sinks_N.float()[:, None, None].expand(*scores_NTC.shape[:2], 1)
        scores_NTC = torch.cat((scores_NTC, sinks), dim=-1)
    probs = scores_NTC.softmax(dim=-1)[..., : seen_TC.shape[1]]
    return probs.masked_fill(~seen_TC, 0.0)
