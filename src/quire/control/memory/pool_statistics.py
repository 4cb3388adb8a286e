"""The figures of one engine's memory, as they are shown outside control. Owns nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The figures of one engine's blocks.

    ``num_held``: blocks that pages or exports refer to, or that transfers use; ``num_cached``,
    ``num_host_cached``, ``num_disk_cached``: kept for the index only; ``is_disk_open``: contents
    may go to the disk; ``num_transfers``: in progress; ``num_swapped_out`` and ``num_swapped_in``:
    blocks whose transfers from and to the device have ended; ``num_demoted``: cached ones that were
    moved to a lower tier in place of being evicted; ``num_dropped``: contents that were given up
    because they can be recomputed; ``num_disk_written``, ``num_disk_read``: blocks written to the
    disk and read from it; ``num_failed_writes``, ``num_failed_reads``: those that could not be.
    """

    num_blocks: int
    num_free: int
    num_cached: int
    num_held: int
    num_host_blocks: int
    num_host_free: int
    num_host_cached: int
    num_disk_blocks: int
    num_disk_free: int
    num_disk_cached: int
    is_disk_open: bool
    num_transfers: int
    num_swapped_out: int
    num_swapped_in: int
    num_demoted: int
    num_dropped: int
    num_disk_written: int
    num_disk_read: int
    num_failed_writes: int
    num_failed_reads: int
    bytes_per_block: int
