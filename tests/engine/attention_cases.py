"""Random steps with every feature that an attention backend must serve, and their expected
results."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.attention.backend import AttentionAttributes, AttentionRows
from quire.engine.attention.reference import TorchAttention
from quire.engine.kv_cache.page_tables import PageLists
from quire.engine.kv_cache.torch_pool import LayerCache

NUM_SLOTS = 1600
NUM_SCRATCH = 50


@dataclass(frozen=True)
class Case:
    """A step over one layer's cache. Flat slots as in ``quire.engine.kv_cache.pool``."""

    rows: AttentionRows
    cache: LayerCache
    q_TND: Tensor
    null_slot: int

    def expected(self, attributes: AttentionAttributes) -> Tensor:
        device = self.q_TND.device
        reference = TorchAttention(device, self.q_TND.dtype, self.null_slot)
        return reference.plan(self.rows).attend(self.q_TND, self.cache, attributes)

    def tokens(self, rows: list[int], start: int = 0, end: int | None = None) -> Case:
        """Only these rows, and of each only its new tokens from ``start`` to ``end``; the earlier
        ones are in its pages."""
        old, parts = self.rows, []
        for row in rows:
            first, last = int(old.row_starts[row]), int(old.row_starts[row + 1])
            tokens = np.arange(first + start, last if end is None else min(last, first + end))
            pages = slice(int(old.pages.starts[row]), int(old.pages.starts[row + 1]))
            visible = old.pages.visible[pages].copy()
            for slot in old.slots[first : first + start].tolist():
                block, offset = divmod(slot, old.page_size)
                visible[old.pages.blocks[pages] == block] |= np.uint64(1 << offset)
            parts.append((tokens, old.pages.blocks[pages], visible))
        chosen = np.concatenate([tokens for tokens, _, _ in parts])
        changed = replace(
            old,
            row_starts=np.cumsum([0] + [len(tokens) for tokens, _, _ in parts]),
            positions=old.positions[chosen],
            slots=old.slots[chosen],
            pages=PageLists(
                np.cumsum([0] + [len(blocks) for _, blocks, _ in parts]),
                np.concatenate([blocks for _, blocks, _ in parts]),
                np.concatenate([visible for _, _, visible in parts]),
            ),
            masks={place: old.masks[row] for place, row in enumerate(rows) if row in old.masks},
        )
        return replace(self, rows=changed, q_TND=self.q_TND[torch.from_numpy(chosen)])


@dataclass(frozen=True)
class RowShape:
    """One row: tokens already in its pages and new ones. ``kind``: see ``make_case``."""

    num_context: int
    num_new: int
    kind: str = "plain"


EVERYTHING = (
    RowShape(0, 1),
    RowShape(37, 1),
    RowShape(9, 5),
    RowShape(21, 1, "holes"),
    RowShape(18, 6, "holes"),
    RowShape(16, 4, "gapped"),
    RowShape(23, 1, "gapped"),
    RowShape(14, 7, "shuffled"),
    RowShape(12, 3, "scratch"),
    RowShape(0, 2, "scratch"),
    RowShape(11, 4, "masked"),
    RowShape(6, 3, "masked scratch"),
    RowShape(40, 33),
    RowShape(0, 29),
)


def make_case(
    shapes: tuple[RowShape, ...],
    *,
    page_size: int,
    heads: tuple[int, int, int] = (4, 2, 16),
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    num_slots: int = NUM_SLOTS,
) -> Case:
    """Kinds: ``holes`` hides some of the context; ``gapped`` has context at positions beyond the
    new tokens; ``shuffled`` writes the new tokens in another order than that of their positions;
    ``scratch`` writes them to slots of no page; ``masked`` has an explicit mask."""
    random = np.random.default_rng(seed)
    num_heads, num_kv_heads, head_dim = heads
    num_slots = num_slots // page_size * page_size
    total = -(-(num_slots + NUM_SCRATCH + 1) // page_size) * page_size  # as in CudaKVPool
    slot_positions = np.full(total, -1, np.int32)
    free = random.permutation(num_slots // page_size).astype(np.int32)
    parts: list[_Row] = []
    scratch = num_slots
    for shape in shapes:
        num_pages = -(-(shape.num_context + shape.num_new) // page_size)
        blocks, free = free[:num_pages], free[num_pages:]
        row = _make_row(shape, blocks, page_size, scratch, slot_positions, random)
        scratch += shape.num_new if "scratch" in shape.kind else 0
        parts.append(row)
    page_starts = np.cumsum([0] + [len(row.blocks) for row in parts])
    rows = AttentionRows(
        row_starts=np.cumsum([0] + [len(row.slots) for row in parts]),
        positions=np.concatenate([row.positions for row in parts]).astype(np.int32),
        slots=np.concatenate([row.slots for row in parts]),
        pages=PageLists(
            page_starts,
            np.concatenate([row.blocks for row in parts]),
            np.concatenate([row.visible for row in parts]),
        ),
        slot_positions=slot_positions,
        page_size=page_size,
        masks={index: row.mask for index, row in enumerate(parts) if row.mask is not None},
    )
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device, dtype)

    cache = LayerCache(normal(total, num_kv_heads, head_dim), normal(total, num_kv_heads, head_dim))
    q_TND = normal(len(rows.positions), num_heads, head_dim)
    return Case(rows, cache, q_TND, total - 1)


@dataclass(frozen=True)
class _Row:
    blocks: NDArray[np.int32]
    visible: NDArray[np.uint64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    mask: NDArray[np.bool_] | None


def _make_row(
    shape: RowShape,
    blocks: NDArray[np.int32],
    page_size: int,
    scratch: int,
    slot_positions: NDArray[np.int32],
    random: np.random.Generator,
) -> _Row:
    flat = (blocks[:, None].astype(np.int64) * page_size + np.arange(page_size)).reshape(-1)
    context = flat[: shape.num_context]
    new = flat[shape.num_context : shape.num_context + shape.num_new]
    context_positions = np.arange(shape.num_context)
    positions = shape.num_context + np.arange(shape.num_new)
    shown = np.ones(shape.num_context, np.bool_)
    if shape.kind == "holes":
        shown = random.random(shape.num_context) < 0.6
    if shape.kind == "gapped":
        positions = shape.num_context + 2 * np.arange(shape.num_new)
        free = np.setdiff1d(np.arange(3 * shape.num_context), positions)
        context_positions = random.permutation(free)[: shape.num_context]
    if shape.kind == "shuffled":
        positions = random.permutation(positions)
    if "scratch" in shape.kind:
        new = scratch + np.arange(shape.num_new)
    slot_positions[context] = context_positions
    slot_positions[new] = positions
    words = np.zeros((len(blocks), page_size), np.bool_)
    words.reshape(-1)[: shape.num_context] = shown
    visible = (words.astype(np.uint64) << np.arange(page_size, dtype=np.uint64)).sum(
        axis=1, dtype=np.uint64
    )
    mask = None
    if "masked" in shape.kind:
        mask = random.random((shape.num_new, len(blocks) * page_size + shape.num_new)) < 0.5
        mask[0] = False  # a token that sees nothing
    return _Row(blocks, visible, positions, new, mask)
