"""Measures the disk tier's bytes per second against those of the file system below it.

    python benchmarks/autellix/disk.py [--quick] [--dir DIR] [--blocks 256]

Blocks of the kernel's cache and of PyTorch's are written from the host tier and read back to the
device by the engine's own threads: copied to their canonical form, checksummed, and the other way.
*raw* writes and reads as many bytes with plain ``pwrite`` and ``pread`` in the same directory, in
the same round. Both go through the system's page cache, so neither is the speed of the bare disk;
the ratio is what the tier costs beside it. Blocks are those of ``bulk.py``: 512 KiB.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Semaphore

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.autellix.bulk import pools
from benchmarks.measurement import figure, ratio, take_turns
from benchmarks.options import plain_parser, rounds_of
from benchmarks.report import emit, print_table
from quire.core.batch import ReadDisk, WriteDisk
from quire.engine.disk_transfers import DiskTransfers
from quire.engine.kv_cache.block_records import BlockRecords
from quire.engine.kv_cache.disk_slab import DiskSlab

BLOCKS, QUICK_BLOCKS = 256, 64


class Tier:
    """A disk tier of ``num_blocks`` that is waited for."""

    def __init__(self, records: BlockRecords, directory: Path, num_blocks: int) -> None:
        slab = DiskSlab(directory, num_blocks, records.num_bytes)
        self._transfers = DiskTransfers(records, slab)
        self._rung = Semaphore(0)
        self._transfers.wake_by(self._rung.release)
        self._blocks = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)

    def write(self) -> float:
        ids = np.arange(len(self._blocks), dtype=np.int32)
        return self._run(
            WriteDisk(transfers=ids, tier="host", blocks=ids, disk_blocks=self._blocks)
        )

    def read(self) -> float:
        ids = np.arange(len(self._blocks), dtype=np.int32)
        return self._run(ReadDisk(transfers=ids, disk_blocks=self._blocks, blocks=ids))

    def _run(self, operation: WriteDisk | ReadDisk) -> float:
        began_s, num_ended = time.perf_counter(), 0
        self._transfers.begin(operation)
        while num_ended < len(operation.transfers):
            self._rung.acquire()
            ended = self._transfers.take_ended()
            assert ended is not None
            assert not len(ended.failed), ended.problem
            num_ended += len(ended.transfers)
        return time.perf_counter() - began_s

    def close(self) -> None:
        self._transfers.close()


class RawFile:
    """A file without a tier, of as many bytes, written and read one block at a time."""

    def __init__(self, directory: Path, num_blocks: int, num_bytes: int) -> None:
        self._file, name = tempfile.mkstemp(dir=directory)
        os.unlink(name)
        self._block = np.random.default_rng(0).bytes(num_bytes)
        self._offsets = [number * num_bytes for number in range(num_blocks)]
        os.posix_fallocate(self._file, 0, num_blocks * num_bytes)

    def write(self) -> float:
        began_s = time.perf_counter()
        for offset in self._offsets:
            os.pwrite(self._file, self._block, offset)
        return time.perf_counter() - began_s

    def read(self) -> float:
        began_s = time.perf_counter()
        for offset in self._offsets:
            os.pread(self._file, len(self._block), offset)
        return time.perf_counter() - began_s

    def close(self) -> None:
        os.close(self._file)


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    made.add_argument("--blocks", type=int, default=None)
    arguments = made.parse_args()
    num_blocks = arguments.blocks or (QUICK_BLOCKS if arguments.quick else BLOCKS)
    rows = []
    for name, pool in pools(num_blocks).items():
        records = BlockRecords(pool)  # type: ignore[arg-type]  # each of these has a host tier
        num_bytes = num_blocks * records.num_bytes
        tier = Tier(records, arguments.dir, num_blocks)
        raw = RawFile(arguments.dir, num_blocks, records.num_bytes)
        ways: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "write": (tier.write, raw.write),
            "read": (tier.read, raw.read),
        }
        for way, (ours, theirs) in ways.items():
            turns = {"tier": partial(ours), "raw": partial(theirs)}
            found = take_turns(f"{name}, {way}", turns, rounds_of(arguments))
            rows.append(
                {
                    "cache": name,
                    "way": way,
                    "GB/s": round(num_bytes / figure(found["tier"]).median / 1e9, 2),
                    "GB/s raw": round(num_bytes / figure(found["raw"]).median / 1e9, 2),
                    "of raw": ratio(found["raw"], found["tier"]).rounded(3),
                }
            )
        tier.close()
        raw.close()
    print_table(
        f"{num_blocks} blocks to the disk and back",
        [{k: v["median"] if isinstance(v, dict) else v for k, v in row.items()} for row in rows],
    )
    emit("autellix/disk", arguments.out, num_blocks=num_blocks, rows=rows)


if __name__ == "__main__":
    main()
