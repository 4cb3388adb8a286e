"""The end of a decode step for all rows in one launch; see ``DecodeState.settle``.

Shapes: B rows, R rows of the memory, S steps, W stop tokens of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def settle_kernel(
    sampled_ptr, best_ptr, tokens_ptr, positions_ptr, slots_ptr, slots_by_step_ptr, steps_ptr,
    stops_ptr, live_ptr, failed_ptr, step_ptr, out_ptr, num_rows, max_rows, idle_slot,
    MAX_STOPS: tl.constexpr, STOPS_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    """One program for all rows, because they share the step counter.

    ``sampled`` [B]: tokens; those whose ``best`` [B] is not finite could not be chosen. The other
    arguments are the state: [R], [S + 1, R] by step, stops [R, W], out [S, R]; booleans as bytes.
    """
    step = tl.load(step_ptr)
    stop_w = tl.arange(0, STOPS_PADDED)
    for block in range(NUM_BLOCKS):
        row = block * BLOCK + tl.arange(0, BLOCK)
        inside = row < num_rows
        sampled = tl.load(sampled_ptr + row, mask=inside, other=0)
        best = tl.load(best_ptr + row, mask=inside, other=0.0)
        live = tl.load(live_ptr + row, mask=inside, other=0) != 0
        good = live & (tl.abs(best) < float("inf"))
        failed = tl.load(failed_ptr + row, mask=inside, other=0) != 0
        tl.store(failed_ptr + row, (failed | (live ^ good)).to(tl.uint8), mask=inside)
        tl.store(out_ptr + step * max_rows + row, tl.where(good, sampled, -1), mask=inside)

        is_stop = inside[:, None] & (stop_w < MAX_STOPS)[None, :]
        stops_at = stops_ptr + row[:, None] * MAX_STOPS + stop_w[None, :]
        stops = tl.load(stops_at, mask=is_stop, other=-1)
        stopped = tl.max((stops == sampled[:, None]).to(tl.int32), axis=1) != 0
        steps = tl.load(steps_ptr + row, mask=inside, other=0)
        goes_on = good & (stopped == 0) & (steps > step + 1)
        tl.store(live_ptr + row, goes_on.to(tl.uint8), mask=inside)
        tl.store(tokens_ptr + row, sampled, mask=inside & goes_on)
        position = tl.load(positions_ptr + row, mask=inside, other=0)
        tl.store(positions_ptr + row, position + goes_on.to(tl.int32), mask=inside)
        slot = tl.load(slots_by_step_ptr + (step + 1) * max_rows + row, mask=inside, other=0)
        tl.store(slots_ptr + row, tl.where(goes_on, slot, idle_slot), mask=inside)
    tl.debug_barrier()  # every warp has read the step counter
    tl.store(step_ptr, step + 1)
