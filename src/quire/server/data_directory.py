"""The directory in which a node keeps files: checks before anything starts that it can be written,
and that no other server uses it."""

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
    """Make the directory if it is missing, and check that it can be written. ``None``: no files are
    kept.

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
    """Lock the data directory while the block runs: two servers would both run its unfinished
    batches. The lock ends with the process, however that ends.

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
    """Return the process id of the server that has the lock, for a message, if the lock file has it
    by now."""
    return f" (pid {written})" if written.isdecimal() else ""
