"""Launches the products of ``cuda.kernels.products``: one tile, whatever the batch.

Shapes: M rows, N or O outputs, K or I inputs, E experts, P rows sorted by expert.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.engine.cuda.optional import load_kernels

_LINEAR_TILE = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 64}
_GROUPED_ROWS = 16
"""Rows of one expert that are multiplied together: with many experts few tokens meet in one."""

_GROUPED_TILE = {"BLOCK_M": _GROUPED_ROWS, "BLOCK_N": 64, "BLOCK_K": 64}


def fixed_linear(
    x_MI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, scale_O: Tensor | None = None
) -> Tensor:
    """``F.linear`` in which a row's bits do not depend on the others.

    ``scale_O``: float32, for weights in float8.
    """
    num_outputs, depth = weight_OI.shape
    x_MI = x_MI.contiguous()
    assert x_MI.shape[1] == depth, f"{x_MI.shape[1]} inputs for a weight of {depth}"
    assert weight_OI.is_contiguous(), "the weight is not contiguous"
    out_MO = x_MI.new_empty(len(x_MI), num_outputs)
    grid = (_tiles(len(x_MI), _LINEAR_TILE["BLOCK_M"]), _tiles(num_outputs, 32))
    load_kernels("products").linear_kernel[grid](
        x_MI,
        weight_OI,
        weight_OI if scale_O is None else scale_O,
        weight_OI if bias_O is None else bias_O,
        out_MO,
        len(x_MI),
        NUM_OUTPUTS=num_outputs,
        DEPTH=depth,
        HAS_SCALES=scale_O is not None,
        HAS_BIAS=bias_O is not None,
        PRECISION=_precision(x_MI),
        **_LINEAR_TILE,
    )
    return out_MO


def grouped_linear(
    x_PI: Tensor,
    weight_EOI: Tensor,
    row_ends_E: Tensor,
    bias_EO: Tensor | None = None,
    scale_EO: Tensor | None = None,
) -> Tensor:
    """Rows of expert e are those up to ``row_ends_E[e]`` (int32) from the end of the one before.

    Nothing is read back from the device, so it can stand in a CUDA graph.
    """
    num_experts, num_outputs, depth = weight_EOI.shape
    assert x_PI.is_contiguous(), "the rows are not contiguous"
    assert weight_EOI.is_contiguous(), "the weight is not contiguous"
    counts_E = torch.diff(row_ends_E, prepend=row_ends_E.new_zeros(1))
    tiles_E = (counts_E + (_GROUPED_ROWS - 1)) // _GROUPED_ROWS
    out_PO = x_PI.new_empty(len(x_PI), num_outputs)
    most = len(x_PI) // _GROUPED_ROWS + min(len(x_PI), num_experts)
    load_kernels("products").grouped_kernel[(most, _tiles(num_outputs, 64))](
        x_PI,
        weight_EOI,
        weight_EOI if scale_EO is None else scale_EO,
        weight_EOI if bias_EO is None else bias_EO,
        out_PO,
        row_ends_E,
        tiles_E.cumsum(0).to(torch.int32),
        NUM_EXPERTS=num_experts,
        EXPERTS_PADDED=1 << (num_experts - 1).bit_length(),
        NUM_OUTPUTS=num_outputs,
        DEPTH=depth,
        HAS_SCALES=scale_EO is not None,
        HAS_BIAS=bias_EO is not None,
        PRECISION=_precision(x_PI),
        **_GROUPED_TILE,
    )
    return out_PO


def _tiles(size: int, block: int) -> int:
    return -(-size // block)


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


__all__ = ["fixed_linear", "grouped_linear"]
