"""Disk space that is reserved for deletions when the disk is full.

A database logs a deletion before it executes it. On a disk without a free block nothing could ever
be deleted; removing a reserved file first makes it possible.
"""

from __future__ import annotations

import logging
from pathlib import Path

logger = logging.getLogger(__name__)

RESERVE_BYTES = 6 << 20
"""Space for a log of 1000 pages, at which SQLite writes the log back, and for the deletion
itself."""

_PIECE = bytes(64 << 10)


class DiskReserve:
    """``hold`` it while there is space, ``give_up`` when there is none. ``path``: its file."""

    def __init__(self, path: Path, num_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self._is_whole = False

    def hold(self) -> None:
        """Reserve the space if there is any. May be called any number of times."""
        if self._is_whole:
            return
        try:
            if not self._path.exists() or self._path.stat().st_size != self._num_bytes:
                self._write()
            self._is_whole = True
        except OSError as exc:
            logger.debug("no space is reserved on the disk of %s: %s", self._path, exc)
            self._path.unlink(missing_ok=True)

    def give_up(self) -> bool:
        """Free the reserved space; return whether there was any."""
        was_whole, self._is_whole = self._is_whole, False
        self._path.unlink(missing_ok=True)
        return was_whole

    def _write(self) -> None:
        with self._path.open("wb") as file:  # a sparse file would reserve nothing
            for _ in range(self._num_bytes // len(_PIECE)):
                file.write(_PIECE)
