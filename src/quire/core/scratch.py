"""Directories for files of a moment, and the removal of those whose process was killed.

A process that ends removes its own. One that is killed cannot: its directories lie there until a
node starts, which knows them by their lock. A lock is gone with its process, whatever ended that,
and holds between containers that share a directory, where process numbers say nothing.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

logger = logging.getLogger(__name__)

_PREFIX = "quire-"
_LOCK = ".lock"

MIN_AGE_S = 60.0
"""Younger ones may be about to be locked."""


class ScratchDirectory:
    """A new directory of this user alone, until ``close``. ``purpose`` stands in its name."""

    def __init__(self, purpose: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))  # its mode is 0700
        self._lock = (self.path / _LOCK).open("w")  # not inherited: it ends with this process
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks: what is not locked must not be found
            (self.path / _LOCK).unlink()

    def close(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def remove_left_behind(directory: Path | None = None) -> list[Path]:
    """Remove what processes of this user that are gone have left in ``directory`` (by default where
    new ones are made); returns what was removed. Blocks."""
    removed = []
    for path in (directory or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        try:
            if _is_left_behind(path):
                shutil.rmtree(path)
                removed.append(path)
        except OSError as exc:  # somebody else removes it, or it is not ours to touch
            logger.debug("%s stays: %s", path, exc)
    if removed:
        logger.info("removed %d directories that killed processes had left", len(removed))
    return removed


def _is_left_behind(path: Path) -> bool:
    found = path.lstat()
    if found.st_uid != os.getuid() or time.time() - found.st_mtime < MIN_AGE_S:
        return False
    lock = path / _LOCK
    if not lock.is_file():  # none of these, or not a directory
        return False
    with lock.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
