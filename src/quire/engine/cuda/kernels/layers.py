"""The operations between a layer's matrix products, each in one pass over memory.

At small batches the launches of a decode step cost as much as its reads, so operations are fused.
Arithmetic in float32, rounded once. Must equal ``quire.engine.layers.rotary`` followed by the cache
write, and ``quire.engine.layers.mlp.activate``.

Shapes: T tokens, N heads, K KV heads, D head size, I intermediate size.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate_write_kernel(
    qk_ptr, v_ptr, cos_ptr, sin_ptr, slots_ptr, q_out_ptr, keys_ptr, values_ptr,
    qk_stride, v_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per token and head of q, k and v.

    ``qk_ptr`` [T, N + K, D] and ``v_ptr`` [T, K, D] with these strides between tokens; cos and
    signed sin [T, ROTARY_DIM]. Writes rotated queries to ``q_out`` [T, N, D], and rotated keys and
    values to the token's slot in K and V [slots, K, D].
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK_D)
    inside = dim < HEAD_DIM
    if head < NUM_HEADS + NUM_KV_HEADS:
        is_rotated = dim < ROTARY_DIM
        partner = tl.where(dim < ROTARY_DIM // 2, dim + ROTARY_DIM // 2, dim - ROTARY_DIM // 2)
        partner = tl.where(is_rotated, partner, dim)
        x_ptr = qk_ptr + token * qk_stride + head * HEAD_DIM
        x = tl.load(x_ptr + dim, mask=inside, other=0.0).to(tl.float32)
        other = tl.load(x_ptr + partner, mask=inside, other=0.0).to(tl.float32)
        at = token * ROTARY_DIM + dim
        cos = tl.load(cos_ptr + at, mask=is_rotated, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + at, mask=is_rotated, other=0.0).to(tl.float32)
        rotated = (x * cos + other * sin).to(q_out_ptr.dtype.element_ty)
        if head < NUM_HEADS:
            tl.store(q_out_ptr + (token * NUM_HEADS + head) * HEAD_DIM + dim, rotated, mask=inside)
        else:
            slot = tl.load(slots_ptr + token)
            key_at = (slot * NUM_KV_HEADS + head - NUM_HEADS) * HEAD_DIM + dim
            tl.store(keys_ptr + key_at, rotated, mask=inside)
    else:
        kv_head = head - NUM_HEADS - NUM_KV_HEADS
        slot = tl.load(slots_ptr + token)
        value = tl.load(v_ptr + token * v_stride + kv_head * HEAD_DIM + dim, mask=inside)
        value_at = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM + dim
        tl.store(values_ptr + value_at, value, mask=inside)


@triton.jit
def gate_kernel(
    gate_up_ptr, out_ptr,
    WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``out[T, I]`` of ``gate_up[T, 2 * I]``, gate first; ``ACTIVATION`` as in ``activate``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    gate_at = gate_up_ptr + row * 2 * WIDTH + column
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    hidden = activated(gate, up, ACTIVATION).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * WIDTH + column, hidden, mask=inside)


@triton.jit
def activated(gate, up, ACTIVATION: tl.constexpr):
    """``activate`` in float32."""
    slope = gate
    if ACTIVATION == "gelu_tanh":  # (1 + tanh(z)) / 2 is the logistic function of 2 z
        slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    if ACTIVATION == "clamped_swiglu":
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0
        slope = 1.702 * gate
    return gate / (1.0 + tl.exp(-tl.maximum(slope, -80.0))) * up  # e^88 overflows
