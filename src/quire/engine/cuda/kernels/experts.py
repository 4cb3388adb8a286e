"""A mixture of experts for few tokens: every pair of a token and an expert separately.

With far fewer pairs than experts, tokens rarely share an expert. Sorting rows by expert then gains
nothing, and a product of one row sums the weights as they are read. Must equal
``quire.engine.layers.experts.Experts``.

Shapes: T tokens, A experts of a token, P = T * A pairs, E experts, H hidden size, I intermediate
size. Weights may be stored in float8 with a scale per output.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.engine.cuda.kernels.layers import activated


@triton.jit
def pair_hidden_kernel(
    x_ptr, experts_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr,
    TOP_K: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """``out[P, I]``: the activated gate times up of each pair's expert ``weight[E, 2 * I, H]``."""
    pair = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < WIDTH
    expert = tl.load(experts_ptr + pair)
    gate_at = expert * 2 * WIDTH + column
    x_at = x_ptr + (pair // TOP_K).to(tl.int64) * SIZE
    gate = _row_product(x_at, weight_ptr, gate_at, inside, SIZE, BLOCK_N, BLOCK_K)
    up = _row_product(x_at, weight_ptr, gate_at + WIDTH, inside, SIZE, BLOCK_N, BLOCK_K)
    if HAS_SCALES:
        gate = gate * tl.load(scale_ptr + gate_at, mask=inside, other=0.0)
        up = up * tl.load(scale_ptr + gate_at + WIDTH, mask=inside, other=0.0)
    if HAS_BIAS:
        gate += tl.load(bias_ptr + gate_at, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(bias_ptr + gate_at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    hidden = activated(gate, up, ACTIVATION).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + pair.to(tl.int64) * WIDTH + column, hidden, mask=inside)


@triton.jit
def pair_output_kernel(
    hidden_ptr, experts_ptr, shares_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr,
    TOP_K: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """``out[T, H]``: the outputs of a token's experts ``weight[E, H, I]`` of ``hidden[P, I]``,
    times their float32 ``shares`` [T, A], added up in the order of the pairs."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < SIZE
    total = tl.zeros([BLOCK_N], tl.float32)
    for place in range(TOP_K):
        pair = token * TOP_K + place
        at = tl.load(experts_ptr + pair) * SIZE + column
        hidden_at = hidden_ptr + pair.to(tl.int64) * WIDTH
        y = _row_product(hidden_at, weight_ptr, at, inside, WIDTH, BLOCK_N, BLOCK_K)
        if HAS_SCALES:
            y = y * tl.load(scale_ptr + at, mask=inside, other=0.0)
        if HAS_BIAS:
            y += tl.load(bias_ptr + at, mask=inside, other=0.0).to(tl.float32)
        total += y * tl.load(shares_ptr + pair)
    out_at = out_ptr + token.to(tl.int64) * SIZE + column
    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _row_product(
    x_ptr, weight_ptr, row, is_row,
    DEPTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows ``row`` [N] of ``weight[., DEPTH]`` times one vector, in float32."""
    depth = tl.arange(0, BLOCK_K)
    weight_at = weight_ptr + row[:, None] * DEPTH + depth[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, DEPTH, BLOCK_K):
        inside = depth + start < DEPTH
        x = tl.load(x_ptr + depth + start, mask=inside, other=0.0).to(tl.float32)
        mask = is_row[:, None] & inside[None, :]
        weight = tl.load(weight_at + start, mask=mask, other=0.0).to(tl.float32)
        acc += weight * x[None, :]
    return tl.sum(acc, axis=1)
