"""Room on a disk that is kept for the moment when it is full: who deletes needs some, too.

A database writes down what it is about to delete before it does. On a disk without a free block
nothing could ever be deleted from it; with a file that can be given up for the while, it can.
"""

from __future__ import annotations

import logging
from pathlib import Path

logger = logging.getLogger(__name__)

RESERVE_BYTES = 6 << 20
"""A log of 1000 pages, at which SQLite writes it back, and the deletion itself."""

_PIECE = bytes(64 << 10)


class DiskReserve:
    """``hold`` it when there is room, ``give_up`` when there is none. ``path``: its file."""

    def __init__(self, path: Path, num_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._num_bytes = num_bytes
        self._is_whole = False

    def hold(self) -> None:
        """Take the room, if there is any; to be called again as often as one likes."""
        if self._is_whole:
            return
        try:
            if not self._path.exists() or self._path.stat().st_size != self._num_bytes:
                self._write()
            self._is_whole = True
        except OSError as exc:
            logger.debug("no room is kept on the disk of %s: %s", self._path, exc)
            self._path.unlink(missing_ok=True)

    def give_up(self) -> bool:
        """Whether there is more room now."""
        was_whole, self._is_whole = self._is_whole, False
        self._path.unlink(missing_ok=True)
        return was_whole

    def _write(self) -> None:
        with self._path.open("wb") as file:  # holes would take no room
            for _ in range(self._num_bytes // len(_PIECE)):
                file.write(_PIECE)
