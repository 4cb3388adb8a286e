"""Transfers from and to the disk tier, beside the messages.

Owns two threads, one that writes and one that reads, so that no read waits for a write; each holds
a few blocks at a time. Control leaves the blocks of a transfer untouched until its end, so nothing
here waits for a message, and no message for it. A failure is reported as the transfer's end and
never raised.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, cast

import numpy as np

from quire.core.batch import I32, ReadDisk, WriteDisk
from quire.core.batch_result import TransfersEnded
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.engine.kv_cache.block_records import BlockRecords
from quire.engine.kv_cache.disk_slab import DiskSlab
from quire.engine.kv_cache.pool import KVPool
from quire.engine.kv_cache.token_form import TokenPool

logger = logging.getLogger(__name__)

PART_BYTES = 16 << 20
"""The size of a part that is read or written at once, reported by one end and held by one
buffer."""


class DiskTransfers:
    """The disk transfers of one engine."""

    def __init__(self, records: BlockRecords, slab: DiskSlab) -> None:
        self._records = records
        self._slab = slab
        self._num_blocks = max(1, PART_BYTES // records.num_bytes)
        self._writer = ThreadPoolExecutor(1, "disk-writer")
        self._reader = ThreadPoolExecutor(1, "disk-reader")
        self._ended: deque[TransfersEnded] = deque()
        self._ring: Callable[[], None] = _nobody
        self._failing: set[str] = set()
        """``written`` and ``read``, if the last transfer of that direction failed."""

    @classmethod
    def open(cls, config: EngineConfig, pool: KVPool) -> Self | None:
        """The disk tier that ``config`` asks for; None if it asks for none.

        Raises:
            ConfigError: there is no room for it, or not for one block.
        """
        if not config.disk_cache_bytes or config.disk_cache_dir is None:
            return None
        records = BlockRecords(cast(TokenPool, pool))
        num_blocks = config.disk_cache_bytes // records.num_bytes
        if not num_blocks:
            raise ConfigError(
                f"disk_cache_bytes is {config.disk_cache_bytes}, but one page of "
                f"{config.page_size} tokens takes {records.num_bytes}: raise it"
            )
        directory = Path(config.disk_cache_dir)
        return cls(records, DiskSlab(directory, num_blocks, records.num_bytes))

    @property
    def num_blocks(self) -> int:
        return self._slab.num_records

    def wake_by(self, ring: Callable[[], None]) -> None:
        """Call ``ring`` whenever transfers have ended."""
        self._ring = ring

    def begin(self, operation: WriteDisk | ReadDisk) -> None:
        """Begin transfers; return at once."""
        count = self._num_blocks
        for start in range(0, len(operation.transfers), count):
            part = slice(start, start + count)
            transfers, blocks = operation.transfers[part], operation.blocks[part]
            numbers = operation.disk_blocks[part]
            if isinstance(operation, ReadDisk):
                self._reader.submit(self._run, "read", self._read, transfers, blocks, numbers)
            else:
                work = self._write_host if operation.tier == "host" else self._write_device
                self._writer.submit(self._run, "written", work, transfers, blocks, numbers)

    def take_ended(self) -> TransfersEnded | None:
        """Transfers that have ended and were not taken yet."""
        return self._ended.popleft() if self._ended else None

    def close(self) -> None:
        """Close the tier; return when nothing reads or writes the engine's memory any more.
        Idempotent."""
        self._writer.shutdown(cancel_futures=True)
        self._reader.shutdown(cancel_futures=True)
        self._slab.close()

    # -- on the threads --------------------------------------------------------------------------

    def _run(
        self,
        done: str,
        work: Callable[[I32, I32], dict[int, str]],
        transfers: I32,
        blocks: I32,
        numbers: I32,
    ) -> None:
        started = time.perf_counter()
        try:
            problems = work(blocks, numbers)
        except OSError as exc:
            problems = dict.fromkeys(range(len(blocks)), f"cannot be written: {exc.strerror}")
        except Exception as exc:
            # whatever it is, of a device, say: a transfer without an end would hold its blocks
            logger.exception("a transfer of %d blocks from or to the disk has failed", len(blocks))
            problems = dict.fromkeys(range(len(blocks)), repr(exc))
        problem = next(iter(problems.values()), "")
        self._tell(done, problem)
        self._ended.append(
            TransfersEnded(
                transfers=transfers,
                elapsed_s=time.perf_counter() - started,
                failed=transfers[np.array(list(problems), np.int64)],
                problem=problem,
            )
        )
        self._ring()

    def _write_device(self, blocks: I32, numbers: I32) -> dict[int, str]:
        self._slab.write(numbers, self._records.read(blocks, on_host=False))
        return {}

    def _write_host(self, blocks: I32, numbers: I32) -> dict[int, str]:
        self._slab.write(numbers, self._records.read(blocks, on_host=True))
        return {}

    def _read(self, blocks: I32, numbers: I32) -> dict[int, str]:
        records, problems = self._slab.read(numbers)
        good = np.array([i for i in range(len(blocks)) if i not in problems], np.int64)
        if len(good):
            self._records.write(records[good], blocks[good])
        return problems

    def _tell(self, done: str, problem: str) -> None:
        """Log once when the disk begins to fail, and once when it works again. A full disk can be
        read, so each direction (``done``: ``written`` or ``read``) fails and recovers by itself,
        on its own thread."""
        if problem and done not in self._failing:
            self._failing.add(done)
            logger.warning(
                "the disk tier fails (%s): pages stay on the host or are computed again", problem
            )
        elif not problem and done in self._failing:
            self._failing.discard(done)
            logger.info("the disk tier works again: pages are %s", done)


def _nobody() -> None:
    """Do nothing: no reader waits yet."""
