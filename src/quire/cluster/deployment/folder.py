"""The files beside one process of a cluster, on its machine.

Owns their names and their access. Their content outlives keepers and Ray: a keeper that comes back
reads in them what runs, and ``quire down`` what no keeper has any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from quire.cluster.deployment.process import ProcessSpec, decoded
from quire.cluster.deployment.running import ProcessIdentity
from quire.cluster.deployment.spawning import session_of, spawned

_PROCESSES = "processes"
_LOCK = "lock"
_RECORD = "record.json"
_CHILD = "child"
_LEAVING = "leaving"
_LOG = "log"
_OLD_LOG = "log.1"

MAX_LOG_BYTES = 64 << 20
_SAID_BYTES = 4096
_SAID_LINES = 12


class StartRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the process that was started last. ``devices``: the GPUs that it was given, as in
    CUDA_VISIBLE_DEVICES. ``log_start``: where its part of the log begins, in bytes."""

    spec: ProcessSpec
    url: str
    boot_id: str
    started_unix_s: float
    restarts: int = 0
    devices: str | None = None
    log_start: int = 0


class ProcessFolder:
    """The folder ``state_dir/processes/NAME``; it is made when something is written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / _LOG

    @property
    def child_file(self) -> Path:
        """The file to which the shell that starts the child writes its /proc/PID/stat."""
        return self.path / _CHILD

    def make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Lock the folder, until the context is left or this process ends. Yields whether the lock
        was free: only its holder may start and end what belongs here."""
        self.make()
        with (self.path / _LOCK).open("w") as file:  # child processes do not inherit it
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def record(self) -> StartRecord | None:
        """Return the record, if there is one. Raises ``ConfigError`` if another release wrote
        it."""
        try:
            raw = (self.path / _RECORD).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(raw, type=StartRecord)
        except msgspec.MsgspecError:
            decoded(raw, str(self.path / _RECORD))  # raises
            raise

    def write_record(self, record: StartRecord) -> None:
        """Write ``record`` before the child is started, so that every process is described."""
        self.child_file.unlink(missing_ok=True)
        self.change_record(record)

    def change_record(self, record: StartRecord) -> None:
        """Replace the record: ``record`` describes what runs from now on."""
        write_private(self.path / _RECORD, msgspec.json.encode(record))

    def child(self) -> ProcessIdentity | None:
        """Return the process that was started last, whether it runs or not."""
        record = self.record()
        return None if record is None else spawned(self.child_file, record.boot_id)

    def session(self) -> int | None:
        """Return the session in which the child was started."""
        return session_of(self.child_file)

    def leave(self, assignment: str) -> None:
        """Note that the child is to end, for a keeper that is started again meanwhile."""
        write_private(self.path / _LEAVING, assignment.encode())

    def is_leaving(self, assignment: str) -> bool:
        try:
            return (self.path / _LEAVING).read_text() == assignment
        except FileNotFoundError:
            return False

    def said(self) -> tuple[str, ...]:
        """Return the last lines of the child's log."""
        record = self.record()
        start = 0 if record is None else record.log_start
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                if start > end:  # it was moved away meanwhile: all that is there is the child's
                    start = 0
                file.seek(max(start, end - _SAID_BYTES))
                text = file.read(_SAID_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return ()
        return tuple(text.splitlines()[-_SAID_LINES:])

    def bound_log(self) -> None:
        """Move the log away when it exceeds its bound. The child appends, so it goes on in the
        emptied file."""
        try:
            if self.log.stat().st_size <= MAX_LOG_BYTES:
                return
        except FileNotFoundError:
            return
        shutil.copyfile(self.log, self.path / _OLD_LOG)
        os.truncate(self.log, 0)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def process_folder(state_dir: Path, name: str) -> ProcessFolder:
    return ProcessFolder(state_dir / _PROCESSES / name)


def process_folders(state_dir: Path) -> list[ProcessFolder]:
    """Return the folders of all processes that were started on this machine and not removed."""
    return [ProcessFolder(path) for path in sorted((state_dir / _PROCESSES).glob("*"))]


def remove_if_empty(state_dir: Path) -> None:
    """Remove the folders of the cluster and of all clusters that have no files any more."""
    with contextlib.suppress(OSError):  # one has files, or is not there
        for path in (state_dir / _PROCESSES, state_dir, state_dir.parent):
            path.rmdir()


def write_private(path: Path, content: bytes) -> None:
    """Replace the file as a whole; only this user may read it."""
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    new.replace(path)
