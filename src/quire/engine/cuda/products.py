"""Launches the products of ``cuda.kernels.products``: one tile for any batch.

Shapes: M rows, N or O outputs, K or I inputs, E experts, P rows sorted by expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.cuda.optional import load_kernels
from quire.engine.layers.mlp import Activation

_LINEAR_TILE = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 64}
_GROUPED_ROWS = 16
"""Rows of one expert that are multiplied together. Small, because with many experts few tokens
share one."""

_GROUPED_TILE = {"BLOCK_M": _GROUPED_ROWS, "BLOCK_N": 64, "BLOCK_K": 64}
_QUANTIZED_AT_A_TIME = 2048
_PAIR_TILE = {"BLOCK_N": 8, "BLOCK_K": 512}


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """The weights of ``quire.engine.layers.experts.Experts``, with float32 scales for float8."""

    activation: Activation
    gate_up_EOI: Tensor
    down_EOI: Tensor
    gate_up_bias_EO: Tensor | None = None
    down_bias_EO: Tensor | None = None
    gate_up_scale_EO: Tensor | None = None
    down_scale_EO: Tensor | None = None


def fixed_linear(
    x_MI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, scale_O: Tensor | None = None
) -> Tensor:
    """``F.linear`` in which a row's bits do not depend on the other rows.

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
    """The products of rows grouped by expert: those of expert e end at ``row_ends_E[e]`` (int32)
    and begin where the previous expert's end. Nothing is read back from the device, so it can be
    part of a CUDA graph."""
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


def quantized(x_MI: Tensor) -> tuple[Tensor, Tensor]:
    """``quantize_rows`` in one launch: E4M3 ``[M, I]`` and float32 scales ``[M, 1]``."""
    num_rows, size = x_MI.shape
    assert x_MI.stride(1) == 1, "the elements of a row are not contiguous"
    out_MI = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=x_MI.device)
    scale_M1 = torch.empty(num_rows, 1, dtype=torch.float32, device=x_MI.device)
    load_kernels("products").quantize_kernel[(num_rows,)](
        x_MI, out_MI, scale_M1, x_MI.stride(0), SIZE=size, BLOCK=_QUANTIZED_AT_A_TIME
    )
    return out_MI, scale_M1


def few_pairs(x_TH: Tensor, experts_TA: Tensor, shares_TA: Tensor, layer: ExpertWeights) -> Tensor:
    """The experts' outputs ``[T, H]``, each pair separately: for fewer pairs than experts.

    ``experts_TA`` int64, ``shares_TA`` float32.
    """
    (num_tokens, size), top_k = x_TH.shape, experts_TA.shape[1]
    width = layer.down_EOI.shape[2]
    assert x_TH.is_contiguous(), "the rows are not contiguous"
    assert experts_TA.is_contiguous(), "the experts' numbers are not contiguous"
    assert shares_TA.is_contiguous(), "the experts' shares are not contiguous"
    kernels = load_kernels("experts")
    hidden_PI = x_TH.new_empty(num_tokens * top_k, width)
    out_TH = torch.empty_like(x_TH)
    shape = {"TOP_K": top_k, "SIZE": size, "WIDTH": width, **_PAIR_TILE}
    kernels.pair_hidden_kernel[(len(hidden_PI), _tiles(width, _PAIR_TILE["BLOCK_N"]))](
        x_TH,
        experts_TA,
        layer.gate_up_EOI,
        layer.gate_up_EOI if layer.gate_up_scale_EO is None else layer.gate_up_scale_EO,
        layer.gate_up_EOI if layer.gate_up_bias_EO is None else layer.gate_up_bias_EO,
        hidden_PI,
        ACTIVATION=layer.activation,
        HAS_SCALES=layer.gate_up_scale_EO is not None,
        HAS_BIAS=layer.gate_up_bias_EO is not None,
        **shape,
    )
    kernels.pair_output_kernel[(num_tokens, _tiles(size, _PAIR_TILE["BLOCK_N"]))](
        hidden_PI,
        experts_TA,
        shares_TA,
        layer.down_EOI,
        layer.down_EOI if layer.down_scale_EO is None else layer.down_scale_EO,
        layer.down_EOI if layer.down_bias_EO is None else layer.down_bias_EO,
        out_TH,
        HAS_SCALES=layer.down_scale_EO is not None,
        HAS_BIAS=layer.down_bias_EO is not None,
        **shape,
    )
    return out_TH


def _tiles(size: int, block: int) -> int:
    return -(-size // block)


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"
