"""Temporary directories, and removal of those whose process was killed.

A process removes its own directories when it ends. A killed process cannot: the next node that
starts removes them, and recognises them by their lock file. The lock ends with its process however
that ended, and works between containers that share a directory, where process ids do not.
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
"""The age from which a directory is locked for certain."""


class ScratchDirectory:
    """A new directory that only this user can access, until ``close``. ``purpose`` is part of its
    name."""

    def __init__(self, purpose: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))  # its mode is 0700
        # not inherited by child processes: the lock ends with this process
        self._lock = (self.path / _LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # a file system without locks: a directory without a lock file is never removed by others
        except OSError:
            (self.path / _LOCK).unlink()

    def close(self) -> None:
        """Remove the directory. Idempotent."""
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
    """Remove the directories in ``directory`` (default: the temporary directory) that ended
    processes of this user have left; returns what was removed. Blocks."""
    removed = []
    for path in (directory or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        try:
            if _is_left_behind(path):
                shutil.rmtree(path)
                removed.append(path)
        except OSError as exc:  # another process removes it, or it belongs to another user
            logger.debug("%s stays: %s", path, exc)
    if removed:
        logger.info("removed %d directories that killed processes had left", len(removed))
    return removed


def _is_left_behind(path: Path) -> bool:
    found = path.lstat()
    if found.st_uid != os.getuid() or time.time() - found.st_mtime < MIN_AGE_S:
        return False
    lock = path / _LOCK
    if not lock.is_file():  # not a scratch directory
        return False
    with lock.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
