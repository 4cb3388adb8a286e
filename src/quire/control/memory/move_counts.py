"""How many blocks one engine has moved between its tiers, and dropped. Owns nothing but counts."""

from __future__ import annotations

from quire.control.memory.transfers import Tier, Transfer


class MoveCounts:
    """The counts; their names are those of ``PoolStatistics``."""

    def __init__(self) -> None:
        self.num_swapped_out = 0
        self.num_swapped_in = 0
        self.num_demoted = 0
        self.num_dropped = 0
        self.num_disk_written = 0
        self.num_disk_read = 0
        self.num_failed_writes = 0
        self.num_failed_reads = 0

    def note_ended(self, transfer: Transfer) -> None:
        writes, reads = transfer.target.tier is Tier.DISK, transfer.source.tier is Tier.DISK
        if transfer.has_failed:
            self.num_failed_writes += writes
            self.num_failed_reads += reads
            return
        self.num_swapped_out += transfer.leaves_device
        self.num_swapped_in += transfer.comes_to_device
        self.num_disk_written += writes
        self.num_disk_read += reads
