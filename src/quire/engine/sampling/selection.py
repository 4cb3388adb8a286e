"""The best k of each row, exactly: ties go to the lower index, on every device and for any k.

``torch.topk`` leaves the order of ties open and reads whole rows. Here a value and its index are
packed into one integer, so that no two are equal, and blocks that cannot hold one of the best are
skipped.

Shapes: S rows, V values, K best, B blocks of W values.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 2048
"""Rows up to this length are ranked without blocks."""

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1


def top_k(values_SV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of each row and their indices ``[S, K]``, best first, ties by lower index.

    NaN counts as larger than all other values, so that it is never hidden.
    """
    num_rows, num_values = values_SV.shape
    if 4 * k >= num_values:
        ranked_SV, columns_SV = values_SV.sort(dim=-1, descending=True, stable=True)
        return ranked_SV[:, :k], columns_SV[:, :k]
    if num_values <= _SMALL:
        columns_SK = _unpack(_pack(values_SV, _columns(values_SV)).topk(k, dim=-1).values)
        return values_SV.gather(1, columns_SK), columns_SK
    width = _block_width(num_values, k)
    blocks_SK = _best_blocks(values_SV, width, k)
    inside_W = torch.arange(width, device=values_SV.device)
    columns_SC = (blocks_SK[:, :, None] * width + inside_W).view(num_rows, -1)
    beyond_SC = columns_SC >= num_values
    columns_SC.masked_fill_(beyond_SC, num_values - 1)
    keys_SC = _pack(values_SV.gather(1, columns_SC), columns_SC)
    keys_SC.masked_fill_(beyond_SC, torch.iinfo(torch.int64).min)
    columns_SK = _unpack(keys_SC.topk(k, dim=-1).values)
    return values_SV.gather(1, columns_SK), columns_SK


def _best_blocks(values_SV: Tensor, width: int, k: int) -> Tensor:
    """Blocks ``[S, K]`` that hold the ``k`` best: those with the best maxima, ties by lower index.

    Every value of another block is below the maxima of these k.
    """
    num_whole = values_SV.shape[1] // width
    whole_SB = values_SV[:, : num_whole * width].reshape(-1, num_whole, width).amax(dim=-1)
    if num_whole * width < values_SV.shape[1]:
        rest_S1 = values_SV[:, num_whole * width :].amax(dim=-1, keepdim=True)
        whole_SB = torch.cat((whole_SB, rest_S1), dim=1)
    return _unpack(_pack(whole_SB, _columns(whole_SB)).topk(k, dim=-1).values)


def _block_width(num_values: int, k: int) -> int:
    """A power of two near sqrt(V / k), which balances the number of blocks against the size of the
    best ones, and small enough that there are more than k blocks."""
    width = 128
    while width > 8 and width * width * k > 2 * num_values:
        width //= 2
    while width > 2 and num_values < 2 * k * width:
        width //= 2
    return width


def _columns(values_SV: Tensor) -> Tensor:
    return torch.arange(values_SV.shape[1], device=values_SV.device)


def _pack(values_SV: Tensor, columns: Tensor) -> Tensor:
    """Integers in the order of values, ties by lower column."""
    # adding 0 makes -0 equal to 0
    bits_SV = torch.nan_to_num(values_SV, torch.inf, torch.inf, -torch.inf).add_(0.0)
    ordered_SV = bits_SV.view(torch.int32)
    ordered_SV = ordered_SV ^ ((ordered_SV >> 31) & 0x7FFFFFFF)
    return (ordered_SV.to(torch.int64) << _INDEX_BITS) | (columns ^ _INDEX_MASK)


def _unpack(keys: Tensor) -> Tensor:
    return (keys & _INDEX_MASK) ^ _INDEX_MASK
