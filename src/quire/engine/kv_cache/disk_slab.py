"""A file of numbered records, with a checksum of each: the disk tier of one engine.

Owns the file and the checksums. The file has its whole size from the start and no name, so that the
system removes it however this process ends; only this user can open it while it has one. Checksums
are kept in memory: a record that another one has taken the place of is noticed as well.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import zlib
from pathlib import Path

import numpy as np

from quire.core.batch import I32
from quire.core.errors import ConfigError
from quire.engine.kv_cache.token_form import U8

logger = logging.getLogger(__name__)


class DiskSlab:
    """``num_records`` of ``record_bytes`` each in a file of ``directory``.

    Several threads may use it at once, as long as they name different records.

    Raises:
        ConfigError: the directory cannot be written to, or has no room.
    """

    def __init__(self, directory: Path, num_records: int, record_bytes: int) -> None:
        self.num_records = num_records
        self._record_bytes = record_bytes
        self._checksums = np.zeros(num_records, np.uint32)
        self._file = _create(directory, num_records * record_bytes)

    def write(self, numbers: I32, records: U8) -> None:
        """Write record ``records[i]`` as number ``numbers[i]``.

        Raises:
            OSError: the disk is full or broken; the records with these numbers are lost.
        """
        for number, record in zip(numbers.tolist(), records, strict=True):
            left, offset = memoryview(record), number * self._record_bytes
            while left:
                done = os.pwrite(self._file, left, offset)
                left, offset = left[done:], offset + done
            self._checksums[number] = zlib.crc32(record)

    def read(self, numbers: I32) -> tuple[U8, dict[int, str]]:
        """Return the records with these numbers, and the problem of each that could not be read, by
        its index."""
        records = np.empty((len(numbers), self._record_bytes), np.uint8)
        problems = {}
        for index, number in enumerate(numbers.tolist()):
            problem = self._read_one(number, memoryview(records[index]))
            if problem:
                problems[index] = problem
        return records, problems

    def _read_one(self, number: int, record: memoryview) -> str:
        """Fill ``record``; returns why that was not possible, or an empty string."""
        left, offset = record, number * self._record_bytes
        try:
            while left:
                done = os.preadv(self._file, [left], offset)
                if not done:
                    return f"block {number} ends {len(left)} bytes short"
                left, offset = left[done:], offset + done
        except OSError as exc:
            return f"block {number} cannot be read: {exc.strerror}"
        if zlib.crc32(record) != self._checksums[number]:
            return f"block {number} is not what was written: its checksum differs"
        return ""

    def close(self) -> None:
        """Close the file, which removes it. Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _create(directory: Path, num_bytes: int) -> int:
    try:
        free = shutil.disk_usage(directory).free
        if free < num_bytes:
            raise ConfigError(
                f"disk_cache_bytes asks for {num_bytes} bytes in {directory}, where {free} are "
                "free: lower it or choose another disk_cache_dir"
            )
        file, name = tempfile.mkstemp(prefix="quire-kv-", dir=directory)  # its mode is 0600
    except OSError as exc:
        raise ConfigError(
            f"disk_cache_dir {directory} cannot be used ({exc.strerror}): choose a directory that "
            "exists and that this user may write to"
        ) from exc
    try:
        Path(name).unlink()
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as exc:
        os.close(file)
        raise ConfigError(
            f"the {num_bytes} bytes of disk_cache_bytes cannot be had in {directory} "
            f"({exc.strerror}): lower it or choose another disk_cache_dir"
        ) from exc
    logger.info("disk tier: %d bytes in %s", num_bytes, directory)
    return file
