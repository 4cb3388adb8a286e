"""Matrix products with one tile for every shape, plain and grouped by expert.

A tile sums along K in ascending steps of ``BLOCK_K`` for any M, and its rows are independent, so a
row's bits depend on that row and the weights alone. Must equal ``F.linear``.

Shapes: M rows, N outputs, K inputs, E experts, P rows sorted by expert. Weights may be stored in
float8 with a scale per output; they are multiplied in the inputs' type.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def linear_kernel(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, num_rows,
    NUM_OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out[M, N] = x[M, K] weight[N, K]^T`` (times scale[N]) (plus bias[N]); all contiguous."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    _tile(
        x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, row, row < num_rows,
        tl.program_id(1), NUM_OUTPUTS, DEPTH, BLOCK_M, BLOCK_N, BLOCK_K,
        HAS_SCALES, HAS_BIAS, PRECISION,
    )  # fmt: skip


@triton.jit
def grouped_kernel(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, row_ends_ptr, tile_ends_ptr,
    NUM_EXPERTS: tl.constexpr, EXPERTS_PADDED: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out[P, N]``, each row by its expert's ``weight[E, N, K]``.

    ``row_ends`` and ``tile_ends`` [E] are cumulative counts of the experts' rows and tiles;
    programs after the last tile do nothing, so the grid does not depend on the routing.
    """
    tile = tl.program_id(0)
    expert_e = tl.arange(0, EXPERTS_PADDED)
    is_expert = expert_e < NUM_EXPERTS
    tile_ends = tl.load(tile_ends_ptr + expert_e, mask=is_expert, other=0)
    if tile < tl.max(tile_ends, axis=0):
        expert = tl.sum((is_expert & (tile_ends <= tile)).to(tl.int32), axis=0)
        first_tile = tl.load(tile_ends_ptr + expert - 1, mask=expert > 0, other=0)
        first_row = tl.load(row_ends_ptr + expert - 1, mask=expert > 0, other=0)
        row = first_row + (tile - first_tile) * BLOCK_M + tl.arange(0, BLOCK_M)
        at = expert.to(tl.int64) * NUM_OUTPUTS
        _tile(
            x_ptr, weight_ptr + at * DEPTH, scale_ptr + at, bias_ptr + at, out_ptr,
            row, row < tl.load(row_ends_ptr + expert),
            tl.program_id(1), NUM_OUTPUTS, DEPTH, BLOCK_M, BLOCK_N, BLOCK_K,
            HAS_SCALES, HAS_BIAS, PRECISION,
        )  # fmt: skip


@triton.jit
def quantize_kernel(
    x_ptr, out_ptr, scale_ptr, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row of ``x[M, K]``: ``out`` in E4M3, whose largest number is 448, and the
    row's ``scale``. Must equal ``quire.engine.cuda.linears.quantize_rows``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        inside = start + column < SIZE
        x = tl.load(x_ptr + row * x_stride + start + column, mask=inside, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
    scale = tl.maximum(tl.max(largest, axis=0) / 448.0, 1e-12)
    tl.store(scale_ptr + row, scale)
    for start in range(0, SIZE, BLOCK):
        inside = start + column < SIZE
        x = tl.load(x_ptr + row * x_stride + start + column, mask=inside, other=0.0)
        scaled = tl.minimum(tl.maximum(x.to(tl.float32) / scale, -448.0), 448.0)
        out_at = out_ptr + row * SIZE + start + column
        tl.store(out_at, scaled.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _tile(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, row, is_row, column_block,
    NUM_OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < NUM_OUTPUTS
    depth = tl.arange(0, BLOCK_K)
    x_at = row[:, None].to(tl.int64) * DEPTH + depth[None, :]
    weight_at = column[None, :].to(tl.int64) * DEPTH + depth[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, DEPTH, BLOCK_K):
        inside = depth + start < DEPTH
        x = tl.load(x_ptr + x_at + start, mask=is_row[:, None] & inside[None, :], other=0.0)
        weight = tl.load(
            weight_ptr + weight_at + start, mask=is_column[None, :] & inside[:, None], other=0.0
        )
        acc += tl.dot(x, weight.to(x.dtype), input_precision=PRECISION)
    if HAS_SCALES:
        acc = acc * tl.load(scale_ptr + column, mask=is_column, other=0.0)[None, :]
    if HAS_BIAS:
        bias = tl.load(bias_ptr + column, mask=is_column, other=0.0)
        acc = acc + bias.to(tl.float32)[None, :]
    tl.store(
        out_ptr + row[:, None].to(tl.int64) * NUM_OUTPUTS + column[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_column[None, :],
    )
