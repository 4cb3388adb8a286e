"""Attention of new tokens over page lists, with visibility words, positions and explicit masks.

Must equal ``quire.engine.attention.reference``. The host describes a step as *work items* (see
``cuda.work_list``): some tokens of one row against a range of that row's columns, where a column is
a slot of its page list (entry * page_size + offset). Programs take items in turn, so the grid does
not depend on the step and the launch can be replayed from a CUDA graph with other work.

Token t at position p sees a column if the bit of its slot is set, its position is above p - window,
and the slot is the token's own or at a position below p. In a row with an explicit mask the mask's
bit replaces the last condition (masks are laid out by column).

Shapes: T new tokens, N heads, K KV heads, G = N / K, D head size, M = tokens * G rows of a tile, C
columns of a tile. Softmax runs online in base 2 (Milakov and Gimelshein, 2018); a range's partial
result is (sum of weighted values, largest score, sum of weights), merged by ``merge_kernel``.
"""

from __future__ import annotations

import triton
import triton.language as tl

ITEM_FIELDS = 8
"""Fields of a work item: first page entry of its row, first token, number of tokens, first column,
end of its columns, partial result to write (-1: the output itself), first mask word (-1: no mask),
mask words per token."""

MERGE_FIELDS = 4
"""Fields of a merge: first token, number of tokens, first partial result, number of partial
results."""

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention_kernel(
    q_ptr, keys_ptr, values_ptr, out_ptr, partial_ptr, statistics_ptr,
    items_ptr, num_items_ptr, blocks_ptr, words_ptr, mask_words_ptr,
    positions_ptr, slots_ptr, slot_positions_ptr, sinks_ptr,
    q_stride, kv_stride, scale, softcap, window,
    PAGE_SIZE: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_MASKS: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program takes every ``num_programs``-th pair of an item and a KV head.

    ``q_ptr`` [T, N, D] with ``q_stride`` elements between tokens; K and V [slots, K, D] with
    ``kv_stride`` between slots; out [T, N, D]; partial [items, K, M, D] and statistics [items, K,
    2, M] in float32. ``window`` 0 means none.
    """
    num_pairs = tl.load(num_items_ptr) * NUM_KV_HEADS
    row_m = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    in_head = dim < HEAD_DIM
    for pair in range(tl.program_id(0), num_pairs, tl.num_programs(0)):
        item_ptr = items_ptr + (pair // NUM_KV_HEADS) * 8
        kv_head = pair % NUM_KV_HEADS
        entry_start = tl.load(item_ptr)
        num_tokens = tl.load(item_ptr + 2)
        column_end = tl.load(item_ptr + 4)
        partial = tl.load(item_ptr + 5)
        mask_start = tl.load(item_ptr + 6)
        mask_stride = tl.load(item_ptr + 7)

        local = row_m // GROUP
        head = kv_head * GROUP + row_m % GROUP
        valid_m = local < num_tokens
        token = tl.load(item_ptr + 1) + tl.where(valid_m, local, 0)
        q_at = token[:, None].to(tl.int64) * q_stride + head[:, None] * HEAD_DIM + dim[None, :]
        q = tl.load(q_ptr + q_at, mask=valid_m[:, None] & in_head[None, :], other=0.0)
        position = tl.load(positions_ptr + token)
        own_slot = tl.load(slots_ptr + token)

        best = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for start in range(tl.load(item_ptr + 3), column_end, BLOCK_C):
            column = start + tl.arange(0, BLOCK_C)
            in_range = column < column_end
            entry = column // PAGE_SIZE
            offset = column % PAGE_SIZE
            block = tl.load(blocks_ptr + entry_start + entry, mask=in_range, other=0)
            slot = block.to(tl.int64) * PAGE_SIZE + offset
            word = tl.load(words_ptr + entry_start + entry, mask=in_range, other=0)
            shown = in_range & (((word >> offset.to(tl.int64)) & 1) != 0)
            slot_position = tl.load(slot_positions_ptr + slot, mask=shown, other=0)
            seen = slot_position[None, :] < position[:, None]
            seen = seen | (slot[None, :] == own_slot[:, None])
            if HAS_MASKS:  # noqa: SIM102 - decided when compiling, the next when running
                if mask_start >= 0:
                    mask_at = mask_start + local[:, None] * mask_stride + entry[None, :]
                    inside = valid_m[:, None] & in_range[None, :]
                    mask_word = tl.load(mask_words_ptr + mask_at, mask=inside, other=0)
                    seen = ((mask_word >> offset[None, :].to(tl.int64)) & 1) != 0
            if window > 0:
                seen = seen & (slot_position[None, :] > position[:, None] - window)
            seen = seen & shown[None, :] & valid_m[:, None]

            kv_at = slot * kv_stride + kv_head * HEAD_DIM
            keys = tl.load(
                keys_ptr + kv_at[None, :] + dim[:, None],
                mask=shown[None, :] & in_head[:, None],
                other=0.0,
            )
            scores = tl.dot(q, keys, input_precision=PRECISION) * scale
            if HAS_SOFTCAP:
                scores = softcap * (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0)
            scores = tl.where(seen, scores * _LOG2_E, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, axis=1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            fade = tl.exp2(best - base)
            weights = tl.exp2(scores - base[:, None])
            # Slots that no token sees are not read: 0 * NaN is NaN, and slots that later steps will
            # write still hold another sequence's data.
            needed = tl.max(seen.to(tl.int32), axis=0) > 0
            values = tl.load(
                values_ptr + kv_at[:, None] + dim[None, :],
                mask=needed[:, None] & in_head[None, :],
                other=0.0,
            )
            total = total * fade + tl.sum(weights, axis=1)
            acc = acc * fade[:, None]
            acc += tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)
            best = higher

        if partial >= 0:
            place = (partial * NUM_KV_HEADS + kv_head).to(tl.int64)
            acc_at = (place * BLOCK_M + row_m[:, None]) * BLOCK_D + dim[None, :]
            tl.store(partial_ptr + acc_at, acc)
            tl.store(statistics_ptr + place * 2 * BLOCK_M + row_m, best)
            tl.store(statistics_ptr + (place * 2 + 1) * BLOCK_M + row_m, total)
        else:
            out = _normalised(acc, best, total, sinks_ptr, head, HAS_SINKS)
            num_heads = NUM_KV_HEADS * GROUP
            out_at = (token[:, None].to(tl.int64) * num_heads + head[:, None]) * HEAD_DIM
            tl.store(
                out_ptr + out_at + dim[None, :],
                out.to(out_ptr.dtype.element_ty),
                mask=valid_m[:, None] & in_head[None, :],
            )


@triton.jit
def merge_kernel(
    out_ptr, partial_ptr, statistics_ptr, merges_ptr, num_merges_ptr, sinks_ptr,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merges the partial results of tokens whose columns were split, ``BLOCK_P`` at a time.

    One program takes every ``num_programs``-th row of a tile, so that a few long sequences keep the
    device busy and no program reads all parts one after another.
    """
    num_rows = tl.load(num_merges_ptr) * NUM_KV_HEADS * BLOCK_M
    part_p = tl.arange(0, BLOCK_P)
    dim = tl.arange(0, BLOCK_D)
    one = tl.zeros([1], tl.int32)
    for number in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        merge_ptr = merges_ptr + (number // (BLOCK_M * NUM_KV_HEADS)) * 4
        kv_head = (number // BLOCK_M) % NUM_KV_HEADS
        row = number % BLOCK_M
        if row // GROUP < tl.load(merge_ptr + 1):
            first = tl.load(merge_ptr + 2)
            num_parts = tl.load(merge_ptr + 3)
            best = tl.full([1], float("-inf"), tl.float32)
            total = tl.zeros([1], tl.float32)
            acc = tl.zeros([1, BLOCK_D], tl.float32)
            for start in range(0, num_parts, BLOCK_P):
                is_part = start + part_p < num_parts
                place = ((first + start + part_p) * NUM_KV_HEADS + kv_head).to(tl.int64)
                best_at = statistics_ptr + place * 2 * BLOCK_M + row
                part_best = tl.load(best_at, mask=is_part, other=float("-inf"))
                part_total = tl.load(best_at + BLOCK_M, mask=is_part, other=0.0)
                part_at = ((place * BLOCK_M + row) * BLOCK_D)[:, None] + dim[None, :]
                part_acc = tl.load(partial_ptr + part_at, mask=is_part[:, None], other=0.0)
                higher = tl.maximum(best, tl.max(part_best, axis=0))
                base = tl.where(higher == float("-inf"), 0.0, higher)
                fade, part_fade = tl.exp2(best - base), tl.exp2(part_best - base)
                total = total * fade + tl.sum(part_total * part_fade, axis=0)
                acc = acc * fade[:, None] + tl.sum(part_acc * part_fade[:, None], axis=0)[None, :]
                best = higher
            head = kv_head * GROUP + row % GROUP + one
            out = _normalised(acc, best, total, sinks_ptr, head, HAS_SINKS)
            token = tl.load(merge_ptr) + row // GROUP + one
            out_at = (token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM
            tl.store(
                out_ptr + out_at + dim[None, :],
                out.to(out_ptr.dtype.element_ty),
                mask=(dim < HEAD_DIM)[None, :],
            )


@triton.jit
def _normalised(acc, best, total, sinks_ptr, head, HAS_SINKS: tl.constexpr):
    """``acc / total`` with the sink's weight in the total; zeros where nothing was seen."""
    weight = total
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32) * _LOG2_E
        higher = tl.maximum(best, sink)
        acc = acc * tl.exp2(best - higher)[:, None]
        weight = total * tl.exp2(best - higher) + tl.exp2(sink - higher)
    return tl.where(total[:, None] > 0.0, acc / tl.where(total > 0.0, weight, 1.0)[:, None], 0.0)
