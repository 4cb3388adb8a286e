"""A disk cache of files that are executed, keyed by what they were built from.

Uses only directories that no other user may write. Does not know what is built.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.core.errors import ConfigError


def check_owned(path: Path, what: str) -> None:
    """Raise ``ConfigError`` if another user may write ``path``, a file or a directory."""
    try:
        found = path.stat()
    except OSError as exc:
        raise ConfigError(f"the {what} {path} cannot be inspected: {exc}") from exc
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        mode = "700" if path.is_dir() else "600"
        raise ConfigError(
            f"the {what} {path} belongs to user {found.st_uid} and has mode "
            f"{found.st_mode & 0o777:o}; its files are run as code, so only this user may "
            f"write there: chmod {mode} {path}, or name another directory"
        )


class ExecutableCache:
    """A directory of finished files; a partly written file never appears under its name.

    ``what``: the directory's name in error messages.

    Raises:
        ConfigError: the directory cannot be made, or others may write to it.
    """

    def __init__(self, directory: Path, what: str) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigError(f"the {what} {directory} cannot be made: {exc}") from exc
        check_owned(directory, what)
        self._directory = directory
        self._what = what

    def find(self, name: str) -> Path | None:
        path = self._directory / name
        return path if path.is_file() else None

    def put(self, name: str, content: bytes) -> Path:
        """Write ``content`` under ``name``; return its path. Raises ``ConfigError``: the disk is
        full, or the directory cannot be written."""
        path = self._directory / name
        unfinished = None
        try:
            with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                unfinished = Path(file.name)
                file.write(content)
            os.replace(unfinished, path)
        except OSError as exc:
            if unfinished is not None:
                unfinished.unlink(missing_ok=True)
            raise ConfigError(
                f"the {self._what} {self._directory} cannot keep {name} ({len(content)} bytes): "
                f"{exc.strerror}; make room, or name another directory"
            ) from exc
        return path

    def keep_newest(self, prefix: str, count: int) -> None:
        """Delete all but the newest ``count`` files whose names begin with ``prefix``."""
        aged: list[tuple[float, Path]] = []
        for path in self._directory.glob(f"{prefix}*"):
            with suppress(FileNotFoundError):  # another process deletes files too
                if path.suffix != ".lock":
                    aged.append((path.stat().st_mtime, path))
        aged.sort(reverse=True)
        for _, path in aged[count:]:
            path.unlink(missing_ok=True)

    @contextmanager
    def building(self, name: str) -> Iterator[None]:
        """A lock under which one process builds ``name``; blocks while another one builds it. The
        holder then looks for the file again."""
        with (self._directory / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
