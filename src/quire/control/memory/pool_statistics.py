"""The figures of one engine's memory, as others see them. Owns nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """``num_held``: blocks that pages or exports refer to, or that transfers use; ``num_cached``,
    ``num_host_cached``: kept for the index only; ``num_transfers``: in progress;
    ``num_swapped_out`` and ``num_swapped_in``: blocks whose transfers have ended; ``num_demoted``:
    cached ones that were moved to the host in place of being evicted; ``num_dropped``: contents
    that were given up because they can be recomputed."""

    num_blocks: int
    num_free: int
    num_cached: int
    num_held: int
    num_host_blocks: int
    num_host_free: int
    num_host_cached: int
    num_transfers: int
    num_swapped_out: int
    num_swapped_in: int
    num_demoted: int
    num_dropped: int
    bytes_per_block: int
