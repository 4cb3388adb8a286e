"""Attention in plain PyTorch: the definition that every other backend must equal.

Rows of similar shape are padded into one group; a group gathers its K and V through one index and
attends with one additive mask per distinct window, all built once per step for all layers.

Shapes: T new tokens, R rows of a group, Q padded tokens per row, C padded slots per row,
N heads, K KV heads, G heads per KV head, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.attention.backend import AttentionAttributes, AttentionRows
from quire.engine.attention.decode_plan import PaddedDecodePlan
from quire.engine.attention.dot_product import attend
from quire.engine.attention.seen_slots import SeenSlots, SlotView
from quire.engine.attention.visible_slots import VisibleSlots, visible_slots
from quire.engine.kv_cache.torch_pool import LayerCache

I64 = NDArray[np.int64]

_MIN_CONTEXT_BITS = 8


def length_class(lengths: I64) -> I64:
    """The class of each length: rows of one class are padded to the longest of them. Classes are
    powers of four."""
    bits = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    return (np.maximum(bits, _MIN_CONTEXT_BITS) + 1) // 2


class TorchAttention:
    """``AttentionBackend`` in PyTorch operations, for any device."""

    name = "torch"

    def __init__(self, device: torch.device, dtype: torch.dtype, null_slot: int) -> None:
        self._view = SlotView(device, dtype, null_slot)
        self._null_slot = null_slot

    def plan(self, rows: AttentionRows) -> PaddedPlan:
        context = visible_slots(rows)
        num_new = np.diff(rows.row_starts)
        classes = length_class(context.counts + num_new) * 64 + np.ceil(np.log2(num_new)) // 2
        groups = [
            self._group(rows, context, np.flatnonzero(classes == one)) for one in np.unique(classes)
        ]
        return PaddedPlan(groups)

    def plan_decode(self, rows: AttentionRows, num_steps: int) -> PaddedDecodePlan:
        context = visible_slots(rows, horizon=num_steps)
        return PaddedDecodePlan(
            context,
            rows.positions,
            num_steps,
            null_slot=self._null_slot,
            view=self._view,
        )

    def _group(self, rows: AttentionRows, context: VisibleSlots, members: I64) -> PaddedGroup:
        tokens_RQ = _padded_tokens(rows, members)
        visibility = _padded_context(rows, context, members, tokens_RQ, self._null_slot)
        return PaddedGroup(tokens_RQ, visibility, self._view)


@dataclass(frozen=True, slots=True)
class Visibility:
    """The slots of a group's rows, their positions, and which query sees which slot (without
    windows)."""

    slots_RC: I64
    positions_RC: I64
    positions_RQ: I64
    allowed_RQC: NDArray[np.bool_]

    def within(self, window: int | None) -> NDArray[np.bool_]:
        """``allowed_RQC`` in layers with this window."""
        if window is None:
            return self.allowed_RQC
        first_RQ = self.positions_RQ - window + 1
        return self.allowed_RQC & (self.positions_RC[:, None, :] >= first_RQ[:, :, None])


def _padded_tokens(rows: AttentionRows, members: I64) -> I64:
    """Indices of the members' new tokens ``[R, Q]``, -1 where a row has fewer."""
    starts = rows.row_starts[members]
    counts = rows.row_starts[members + 1] - starts
    column = np.arange(counts.max())
    return np.where(column < counts[:, None], starts[:, None] + column, -1)


def _padded_context(
    rows: AttentionRows, context: VisibleSlots, members: I64, tokens_RQ: I64, null_slot: int
) -> Visibility:
    """Context and new tokens of the members, and which query sees which of them."""
    num_context = context.counts[members]
    num_new = (tokens_RQ >= 0).sum(axis=1)
    num_columns = int((num_context + num_new).max())
    slots_RC = np.full((len(members), num_columns), null_slot, np.int64)
    positions_RC = np.full(slots_RC.shape, np.iinfo(np.int64).max)
    place = np.full(rows.num_rows, -1)
    place[members] = np.arange(len(members))
    mine = place[context.rows] >= 0
    at = (place[context.rows[mine]], context.offsets[mine])
    slots_RC[at], positions_RC[at] = context.slots[mine], context.positions[mine]

    row, query = np.nonzero(tokens_RQ >= 0)
    token = tokens_RQ[row, query]
    own = num_context[row] + query
    slots_RC[row, own], positions_RC[row, own] = rows.slots[token], rows.positions[token]
    positions_RQ = np.where(tokens_RQ >= 0, rows.positions[tokens_RQ], 0)
    allowed_RQC = positions_RC[:, None, :] < positions_RQ[:, :, None]
    allowed_RQC[row, query, own] = True
    for member, mask in rows.masks.items():
        if (r := place[member]) >= 0:
            allowed_RQC[r] = False
            columns = context.columns[context.starts[member] : context.starts[member + 1]]
            new = np.arange(mask.shape[1] - len(mask), mask.shape[1])
            shown = mask[:, np.concatenate((columns, new))]
            allowed_RQC[r, : len(mask), : shown.shape[1]] = shown
    return Visibility(slots_RC, positions_RC, positions_RQ, allowed_RQC)


class PaddedGroup:
    """Rows padded to common lengths."""

    def __init__(self, tokens_RQ: I64, visibility: Visibility, view: SlotView) -> None:
        self.num_rows, self.num_queries = tokens_RQ.shape
        self.tokens = view.index(np.maximum(tokens_RQ, 0))
        self.valid = view.index(np.flatnonzero(tokens_RQ >= 0))
        self.members = self.tokens[self.valid]
        self._valid_RQ = tokens_RQ >= 0
        self._visibility = visibility
        self._view = view
        self._seen: dict[int | None, SeenSlots] = {}

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        """Output ``[num_members, N * D]``, in the order of ``members``."""
        _, num_heads, head_dim = q_TND.shape
        shape = (self.num_rows, -1, *cache.keys_SKD.shape[1:])
        q_RQND = q_TND.index_select(0, self.tokens).view(
            self.num_rows, self.num_queries, num_heads, head_dim
        )
        seen = self._seen_from(attributes.window)
        out_RNQD = attend(
            q_RQND.transpose(1, 2),
            cache.keys_SKD.index_select(0, seen.slots).view(shape).transpose(1, 2),
            cache.values_SKD.index_select(0, seen.slots).view(shape).transpose(1, 2),
            seen.bias_R1QC,
            attributes,
        )
        out = out_RNQD.transpose(1, 2).reshape(-1, num_heads * head_dim)
        if seen.blind is not None:
            out.index_fill_(0, seen.blind, 0.0)
        return out.index_select(0, self.valid)

    def _seen_from(self, window: int | None) -> SeenSlots:
        """The slots that layers with this window see; built on first use."""
        if window not in self._seen:
            self._seen[window] = self._view.of(
                self._visibility.slots_RC,
                self._visibility.within(window),
                windowed=window is not None,
                valid_RQ=self._valid_RQ,
            )
        return self._seen[window]


class PaddedPlan:
    """``AttentionPlan`` over the groups of a step."""

    def __init__(self, groups: list[PaddedGroup]) -> None:
        self._groups = groups

    def attend(self, q_TND: Tensor, cache: LayerCache, attributes: AttentionAttributes) -> Tensor:
        num_tokens, num_heads, head_dim = q_TND.shape
        out = q_TND.new_empty(num_tokens, num_heads * head_dim)
        for group in self._groups:
            out.index_copy_(0, group.members, group.attend(q_TND, cache, attributes))
        return out
