"""Launches the attention kernels: checks shapes and dtypes, chooses the tile, holds the results.

Shapes: T new tokens, N heads, K KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.engine.attention.backend import AttentionAttributes
from quire.engine.cuda.optional import load_kernels
from quire.engine.cuda.upload import upload
from quire.engine.cuda.work_list import Tiling, WorkList
from quire.engine.kv_cache.torch_pool import LayerCache

_LEAST_ROWS = 16
"""The fewest rows and columns that a tensor core multiplies."""

_LEAST_SHARED_BYTES = 99 << 10
"""Shared memory per block on the smallest supported device."""

_MERGED_PARTS = 16
"""Partial results that a program of the merge kernel reads at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBuffers:
    """A step's entries and tokens on the device, as ``cuda.page_entries`` describes them."""

    blocks: Tensor
    words: Tensor
    mask_words: Tensor
    positions: Tensor
    slots: Tensor
    slot_positions: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionLaunch:
    """A work list on the device. ``counts``: int32, numbers of items and merges. The number of
    programs does not depend on them."""

    items: Tensor
    merges: Tensor
    counts: Tensor
    tiling: Tiling
    num_partials: int
    has_masks: bool

    @classmethod
    def of(
        cls, work: WorkList, tiling: Tiling, device: torch.device, *, has_masks: bool
    ) -> AttentionLaunch:
        counts = np.array([len(work.items), len(work.merges)], np.int32)
        tensors = upload({"items": work.items, "merges": work.merges, "counts": counts}, device)
        return cls(**tensors, tiling=tiling, num_partials=work.num_partials, has_masks=has_masks)


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """Partial results: ``sums`` ``[parts, K, M, D]`` and ``statistics`` ``[parts, K, 2, M]``."""

    sums: Tensor
    statistics: Tensor

    @classmethod
    def empty(
        cls, num_parts: int, num_kv_heads: int, rows: int, dims: int, device: torch.device
    ) -> Partials:
        shape = (max(num_parts, 1), num_kv_heads, rows)
        sums = torch.empty(*shape, dims, dtype=torch.float32, device=device)
        return cls(sums, torch.empty(shape[0], num_kv_heads, 2, rows, device=device))


def tile_rows(tile_tokens: int, heads_per_group: int) -> int:
    """Rows of a tile, padded to the tensor cores' minimum."""
    return _padded(tile_tokens * heads_per_group)


def padded_head(head_dim: int) -> int:
    return _padded(head_dim)


def num_stages(block_d: int, itemsize: int, shared_bytes: int) -> int:
    """The number of tiles of K and V that are loaded at a time, given a block's shared memory:
    three take up to 660 bytes per element of a head. One for float32, whose exact products Triton
    3.6 cannot compile otherwise."""
    return 3 if itemsize < 4 and 700 * block_d <= shared_bytes else 1


def launch(
    work: AttentionLaunch,
    buffers: AttentionBuffers,
    q_TND: Tensor,
    cache: LayerCache,
    attributes: AttentionAttributes,
    out_TND: Tensor,
    *,
    page_size: int,
    num_programs: int,
    partials: Partials | None = None,
) -> None:
    """Write the output of the work's tokens into ``out_TND``."""
    kernels = load_kernels("attention")
    _, num_heads, head_dim = q_TND.shape
    num_kv_heads = cache.keys_SKD.shape[1]
    _check(q_TND, cache, out_TND)
    group = num_heads // num_kv_heads
    rows, dims = tile_rows(work.tiling.tile_tokens, group), padded_head(head_dim)
    if partials is None:
        partials = Partials.empty(work.num_partials, num_kv_heads, rows, dims, q_TND.device)
    sinks = attributes.sinks_N if attributes.sinks_N is not None else partials.statistics
    shape = {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_M": rows,
        "BLOCK_D": dims,
        "HAS_SINKS": attributes.sinks_N is not None,
    }
    kernels.attention_kernel[(num_programs,)](
        q_TND,
        cache.keys_SKD,
        cache.values_SKD,
        out_TND,
        partials.sums,
        partials.statistics,
        work.items,
        work.counts,
        buffers.blocks,
        buffers.words,
        buffers.mask_words,
        buffers.positions,
        buffers.slots,
        buffers.slot_positions,
        sinks,
        q_TND.stride(0),
        cache.keys_SKD.stride(0),
        attributes.scale,
        attributes.softcap or 0.0,
        attributes.window or 0,
        PAGE_SIZE=page_size,
        BLOCK_C=work.tiling.column_block,
        HAS_MASKS=work.has_masks,
        HAS_SOFTCAP=attributes.softcap is not None,
        PRECISION="ieee" if q_TND.dtype == torch.float32 else "tf32",
        num_stages=num_stages(dims, q_TND.element_size(), _shared_bytes(q_TND.device)),
        **shape,
    )
    if work.tiling.split_columns is not None:
        kernels.merge_kernel[(num_programs,)](
            out_TND,
            partials.sums,
            partials.statistics,
            work.merges,
            work.counts[1:],
            sinks,
            BLOCK_P=_MERGED_PARTS,
            **shape,
        )


def _check(q_TND: Tensor, cache: LayerCache, out_TND: Tensor) -> None:
    num_heads, head_dim = q_TND.shape[1:]
    keys, values = cache.keys_SKD, cache.values_SKD
    assert keys.shape == values.shape, "K and V differ in shape"
    assert keys.is_contiguous(), "K is not contiguous"
    assert values.is_contiguous(), "V is not contiguous"
    assert keys.dtype == values.dtype == q_TND.dtype, "q, K and V differ in dtype"
    assert keys.shape[2] == head_dim, f"heads of {head_dim} over K of {keys.shape[2]}"
    assert num_heads % keys.shape[1] == 0, f"{num_heads} heads over {keys.shape[1]} KV heads"
    assert q_TND.stride()[1:] == (head_dim, 1), "heads of q are not contiguous"
    assert out_TND.is_contiguous(), "the output is not contiguous"


def _shared_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", _LEAST_SHARED_BYTES))


def _padded(count: int) -> int:
    return max(_LEAST_ROWS, 1 << (count - 1).bit_length())
