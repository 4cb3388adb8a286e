"""The directory in which a node keeps files: whether it can, asked before anything starts, and
that no other server works with what it keeps there."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.core.errors import ConfigError

_LOCK = "server.lock"


def check_data_directory(path: Path | None) -> None:
    """Make the directory if need be, and write to it; ``None``: nothing is kept.

    Raises:
        ConfigError: it cannot be made, or nothing can be written there.
    """
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
    except OSError as exc:
        raise ConfigError(
            f"nothing can be kept in the data directory {path}: {exc.strerror or exc}; name "
            "another with --data-dir, or make room and give this user the right to write there"
        ) from exc


@contextmanager
def sole_server(path: Path | None) -> Iterator[None]:
    """No other server has this data directory while the block runs: two would both run the batches
    that are unfinished there. The lock ends with the process, however that ends.

    Raises:
        ConfigError: another server has it.
    """
    if path is None:
        yield
        return
    with (path / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            lock.seek(0)
            raise ConfigError(
                f"the data directory {path} is in use by another server{_holder(lock.read())}, and "
                "both would run the batches in it: stop that one, or name another with --data-dir"
            ) from exc
        except OSError:  # a file system without locks
            yield
            return
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _holder(written: str) -> str:
    """Who holds the lock, if it has written its id by now."""
    return f" (pid {written})" if written.isdecimal() else ""
